"""KubeVirt's own CRDs of virtual machines, from its Go module: the schemas are fetched, not copied.

The module has its CRDs as a program that all of it would have to be built for. So names and columns stand here, as
`pkg/virt-operator/resource/generate/components/crds.go` has them; the schemas are text of the file beside that.
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
from localcluster.trouble import LocalClusterError

MODULE = "kubevirt.io/kubevirt"
SCHEMAS = "pkg/virt-operator/resource/generate/components/validations_generated.go"
GROUP, STORED = "kubevirt.io", "v1"
MIGRATION_POLICIES = "migrationpolicies"


class Kind(NamedTuple):
    """What the schema of a kind does not say.

    Attributes:
        name: the kind.
        short: its short names.
        columns: what kubectl shows, beside its name: heading → path.
        has_status: whether its status is written by itself.
        group: its API group.
        versions: those that are served; the first one is stored.
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
        """Its name as the API server has it in paths, but for one object."""
        return self.name.lower()

    @property
    def plural(self) -> str:
        """Its name as the API server has it in paths."""
        return MIGRATION_POLICIES if self.name == "MigrationPolicy" else f"{self.singular}s"

    @property
    def path(self) -> str:
        """Where all objects of it are listed."""
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
"""Those that virt-controller watches, too, without which it does not start."""


def file() -> Path:
    """Give the file with the schemas; LocalClusterError where the module cannot be fetched."""
    return build.module_folder("kubevirt", MODULE) / SCHEMAS


def definitions(kinds: Sequence[Kind] = KINDS) -> list[dict[str, Any]]:
    """Give the CustomResourceDefinitions."""
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
    """Apply them; return when all kinds are served."""
    written = cluster.directory / "kubevirt.json"
    written.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": definitions(kinds)}))
    cluster.kubectl("apply", "--server-side", "-f", written)
    await_ready("KubeVirt's kinds", lambda: all(cluster.serves(kind.path) for kind in kinds), cluster.servers)
