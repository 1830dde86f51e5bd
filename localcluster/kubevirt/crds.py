"""KubeVirt's own CRDs of virtual machines, with the schemas from its Go module: fetched at build time, not copied.

The module only has a program that generates the CRDs, and building it would need the whole module. So names and printer
columns are repeated here from `pkg/virt-operator/resource/generate/components/crds.go`. The schemas are text in a file
next to that one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from eventing.local.manifests import LOADER
from localcluster.cluster import LocalCluster
from localcluster.processes import await_ready
from localcluster.programs import build
from localcluster.errors import LocalClusterError

MODULE = "kubevirt.io/kubevirt"
SCHEMAS = "pkg/virt-operator/resource/generate/components/validations_generated.go"
GROUP, STORED = "kubevirt.io", "v1"
MIGRATION_POLICIES = "migrationpolicies"


class Kind(NamedTuple):
    """The parts of a CRD that its schema does not contain.

    Attributes:
        name: The kind.
        short: Its short names.
        columns: Printer columns besides the name: heading to JSON path.
        has_status: Whether it has a status subresource.
        group: Its API group.
        versions: The served versions; the first one is stored.
        scope: "Namespaced" or "Cluster".
    """

    name: str
    short: tuple[str, ...] = ()
    columns: dict[str, str] = {}  # noqa: RUF012  # nobody writes to it
    has_status: bool = True
    group: str = GROUP
    versions: tuple[str, ...] = (STORED, "v1alpha3")
    scope: str = "Namespaced"

    @property
    def singular(self) -> str:
        """Return the singular resource name."""
        return self.name.lower()

    @property
    def plural(self) -> str:
        """Return the plural resource name."""
        return MIGRATION_POLICIES if self.name == "MigrationPolicy" else f"{self.singular}s"

    @property
    def path(self) -> str:
        """Return the path that lists all objects of this kind."""
        return f"/apis/{self.group}/{self.versions[0]}/{self.plural}"


READY = ".status.conditions[?(@.type=='Ready')].status"
KINDS = (
    Kind("VirtualMachine", ("vm", "vms"), {"Status": ".status.printableStatus", "Ready": READY}),
    Kind(
        "VirtualMachineInstance",
        ("vmi", "vmis"),
        {
            "Phase": ".status.phase",
            "IP": ".status.interfaces[0].ipAddress",
            "NodeName": ".status.nodeName",
            "Ready": READY,
        },
        has_status=False,
    ),
    Kind("VirtualMachineInstanceMigration", ("vmim", "vmims"), {"Phase": ".status.phase", "VMI": ".spec.vmiName"}),
    Kind("KubeVirt", ("kv", "kvs"), {"Phase": ".status.phase"}),
)
_BETA = ("v1beta1",)
WATCHED = (
    Kind("VirtualMachineInstancePreset"),
    Kind("VirtualMachineInstanceReplicaSet"),
    Kind("VirtualMachinePool", group=f"pool.{GROUP}", versions=("v1alpha1",)),
    *(
        Kind(name, group=f"snapshot.{GROUP}", versions=_BETA)
        for name in ("VirtualMachineSnapshot", "VirtualMachineSnapshotContent", "VirtualMachineRestore")
    ),
    Kind("VirtualMachineExport", group=f"export.{GROUP}", versions=_BETA),
    Kind("VirtualMachineClone", group=f"clone.{GROUP}", versions=_BETA),
    *(
        Kind(f"VirtualMachine{scope}{what}", (), {}, False, f"instancetype.{GROUP}", _BETA, scope or "Namespaced")
        for what in ("Instancetype", "Preference")
        for scope in ("", "Cluster")
    ),
    Kind("MigrationPolicy", group=f"migrations.{GROUP}", versions=("v1alpha1",), scope="Cluster"),
)
"""Further kinds that virt-controller watches; it does not start without them."""


def file() -> Path:
    """Return the file with the schemas. Raises `LocalClusterError` if the module cannot be fetched."""
    return build.module_folder("kubevirt", MODULE) / SCHEMAS


def definitions(kinds: Sequence[Kind] = KINDS) -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions."""
    text = file().read_text()
    return [_definition(kind, _schema(kind, text)) for kind in kinds]


def _schema(kind: Kind, text: str) -> dict[str, Any]:
    found = re.search(rf'^\t"{kind.singular}": `([^`]*)`', text, re.MULTILINE)
    if found is None:
        raise LocalClusterError(f"{SCHEMAS} of {MODULE} has no schema of {kind.name}: see go.mod for its version")
    schema: dict[str, Any] = yaml.load(found[1], Loader=LOADER)  # noqa: S506  # it is the safe one, in C
    return schema


def _definition(kind: Kind, schema: dict[str, Any]) -> dict[str, Any]:
    columns = {"Age": ".metadata.creationTimestamp", **kind.columns}
    version = {
        "served": True,
        "schema": schema,
        "additionalPrinterColumns": [
            {"name": name, "type": "date" if name == "Age" else "string", "jsonPath": path}
            for name, path in columns.items()
        ],
        **({"subresources": {"status": {}}} if kind.has_status else {}),
    }
    names = {"plural": kind.plural, "singular": kind.singular, "kind": kind.name, "shortNames": list(kind.short)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": {**names, "categories": ["all"]},
            "scope": kind.scope,
            "versions": [{"name": name, "storage": name == kind.versions[0], **version} for name in kind.versions],
        },
    }


def install(cluster: LocalCluster, kinds: Sequence[Kind] = KINDS) -> None:
    """Apply the CustomResourceDefinitions; return when all kinds are served."""
    written = cluster.directory / "kubevirt.json"
    written.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": definitions(kinds)}))
    cluster.kubectl("apply", "--server-side", "-f", written)
    await_ready("KubeVirt's kinds", lambda: all(cluster.serves(kind.path) for kind in kinds), cluster.servers)
