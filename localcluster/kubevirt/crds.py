"""Generates KubeVirt's CRDs of virtual machines with the schemas from its Go module, which is downloaded, not copied.

The module contains no CRD files, only a program that generates them, and building that program requires the whole
module. So this module repeats the names and printer columns from `crds.go` in KubeVirt's directory
`pkg/virt-operator/resource/generate/components`. The schemas are YAML text in a Go file next to `crds.go`.
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
        short_names: The resource's short names.
        columns: The printer columns besides the name: the JSON path by heading.
        has_status: Whether the CRD has a status subresource.
        group: The API group.
        versions: The served versions, the storage version first.
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
        """Return the API path that lists the objects of this kind in all namespaces."""
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
"""CRDs that virt-controller also watches, and without which it does not start."""


def fetch_schemas_file() -> Path:
    """Return the Go file with the schemas. Raises `LocalClusterError` if the module cannot be downloaded."""
    return build.download_program_module("kubevirt", MODULE) / SCHEMAS_FILE


def build_crds(crds: Sequence[CrdInfo] = INSTALLED_CRDS) -> list[dict[str, Any]]:
    """Build the CustomResourceDefinitions with the schemas of KubeVirt's Go module."""
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
    """Apply the CustomResourceDefinitions; return when the API server serves their kinds."""
    file = cluster.directory / "kubevirt.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": build_crds(crds)}))
    cluster.kubectl("apply", "--server-side", "-f", file)
    wait_until_ready("KubeVirt's kinds", lambda: all(cluster.is_served(kind.path) for kind in crds), cluster.servers)
