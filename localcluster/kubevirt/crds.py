"""KubeVirt's own CRDs of virtual machines, with the schemas from its Go module: fetched at build time, not copied.

The module has no CRD files, only a program that generates them; building that program would need the whole module. So
names and printer columns are repeated here from `pkg/virt-operator/resource/generate/components/crds.go`. The schemas
are text in a file next to `crds.go`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.processes import wait_until_ready
from localcluster.programs import build

MODULE = "kubevirt.io/kubevirt"
SCHEMAS_FILE = "pkg/virt-operator/resource/generate/components/validations_generated.go"
GROUP, STORAGE_VERSION = "kubevirt.io", "v1"
MIGRATION_POLICIES = "migrationpolicies"


class CrdInfo(NamedTuple):
    """The parts of a CRD that its schema does not contain.

    Attributes:
        name: The kind.
        short_names: Its short names.
        columns: Printer columns besides the name: heading to JSON path.
        has_status: Whether it has a status subresource.
        group: Its API group.
        versions: The served versions; the first one is stored.
        scope: "Namespaced" or "Cluster".
    """

    name: str
    short_names: tuple[str, ...] = ()
    columns: dict[str, str] = {}  # noqa: RUF012  # never mutated
    has_status: bool = True
    group: str = GROUP
    versions: tuple[str, ...] = (STORAGE_VERSION, "v1alpha3")
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


READY_JSON_PATH = ".status.conditions[?(@.type=='Ready')].status"
INSTALLED_CRDS = (
    CrdInfo("VirtualMachine", ("vm", "vms"), {"Status": ".status.printableStatus", "Ready": READY_JSON_PATH}),
    CrdInfo(
        "VirtualMachineInstance",
        ("vmi", "vmis"),
        {
            "Phase": ".status.phase",
            "IP": ".status.interfaces[0].ipAddress",
            "NodeName": ".status.nodeName",
            "Ready": READY_JSON_PATH,
        },
        has_status=False,
    ),
    CrdInfo("VirtualMachineInstanceMigration", ("vmim", "vmims"), {"Phase": ".status.phase", "VMI": ".spec.vmiName"}),
    CrdInfo("KubeVirt", ("kv", "kvs"), {"Phase": ".status.phase"}),
)
_BETA_VERSIONS = ("v1beta1",)
WATCHED_CRDS = (
    CrdInfo("VirtualMachineInstancePreset"),
    CrdInfo("VirtualMachineInstanceReplicaSet"),
    CrdInfo("VirtualMachinePool", group=f"pool.{GROUP}", versions=("v1alpha1",)),
    *(
        CrdInfo(name, group=f"snapshot.{GROUP}", versions=_BETA_VERSIONS)
        for name in ("VirtualMachineSnapshot", "VirtualMachineSnapshotContent", "VirtualMachineRestore")
    ),
    CrdInfo("VirtualMachineExport", group=f"export.{GROUP}", versions=_BETA_VERSIONS),
    CrdInfo("VirtualMachineClone", group=f"clone.{GROUP}", versions=_BETA_VERSIONS),
    *(
        CrdInfo(
            f"VirtualMachine{scope}{suffix}",
            (),
            {},
            False,
            f"instancetype.{GROUP}",
            _BETA_VERSIONS,
            scope or "Namespaced",
        )
        for suffix in ("Instancetype", "Preference")
        for scope in ("", "Cluster")
    ),
    CrdInfo("MigrationPolicy", group=f"migrations.{GROUP}", versions=("v1alpha1",), scope="Cluster"),
)
"""Further kinds that virt-controller watches; it does not start without them."""


def fetch_schemas_file() -> Path:
    """Return the file with the schemas. Raises `LocalClusterError` if the module cannot be fetched."""
    return build.download_program_module("kubevirt", MODULE) / SCHEMAS_FILE


def build_crds(crds: Sequence[CrdInfo] = INSTALLED_CRDS) -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions."""
    text = fetch_schemas_file().read_text()
    return [_build_crd(kind, _parse_schema(kind, text)) for kind in crds]


def _parse_schema(crd: CrdInfo, text: str) -> dict[str, Any]:
    match = re.search(rf'^\t"{crd.singular}": `([^`]*)`', text, re.MULTILINE)
    if match is None:
        raise LocalClusterError(
            f"module {MODULE}: {SCHEMAS_FILE} has no schema of {crd.name}: check its version in go.mod"
        )
    schema: dict[str, Any] = yaml.load(match[1], Loader=YAML_LOADER)  # noqa: S506  # the C implementation of SafeLoader
    return schema


def _build_crd(crd: CrdInfo, schema: dict[str, Any]) -> dict[str, Any]:
    columns = {"Age": ".metadata.creationTimestamp", **crd.columns}
    version = {
        "served": True,
        "schema": schema,
        "additionalPrinterColumns": [
            {"name": name, "type": "date" if name == "Age" else "string", "jsonPath": path}
            for name, path in columns.items()
        ],
        **({"subresources": {"status": {}}} if crd.has_status else {}),
    }
    names = {"plural": crd.plural, "singular": crd.singular, "kind": crd.name, "shortNames": list(crd.short_names)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{crd.plural}.{crd.group}"},
        "spec": {
            "group": crd.group,
            "names": {**names, "categories": ["all"]},
            "scope": crd.scope,
            "versions": [{"name": name, "storage": name == crd.versions[0], **version} for name in crd.versions],
        },
    }


def install_crds(cluster: LocalCluster, crds: Sequence[CrdInfo] = INSTALLED_CRDS) -> None:
    """Apply the CustomResourceDefinitions; return when all kinds are served."""
    file = cluster.directory / "kubevirt.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": build_crds(crds)}))
    cluster.kubectl("apply", "--server-side", "-f", file)
    wait_until_ready("KubeVirt's kinds", lambda: all(cluster.is_served(kind.path) for kind in crds), cluster.servers)
