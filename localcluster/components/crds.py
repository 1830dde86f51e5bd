"""Downloads the CRDs of other projects that the opt-in components require, and applies them to a cluster.

OpenShift's Go module contains its CRDs, and KubeVirt's CRDs are generated from its Go module. HyperConverged's CRD is
published only with its operator, so hyperconverged.yaml is a minimal CRD with the fields that the product reads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kube.cpu_labels.hyperconverged import HYPERCONVERGEDS_PATH
from localcluster.cluster import LocalCluster
from localcluster.components.selection import CPU_LABELS, MUTEX, VIRTUALIZATION, Components
from localcluster.kubevirt import crds as kubevirt
from localcluster.processes import wait_until_ready
from localcluster.programs import build

OPENSHIFT_MODULE = "github.com/openshift/api"
OPENSHIFT_CRD_PATTERNS = (
    "machineconfiguration/v1/zz_generated.crd-manifests/*_machineconfigs.crd.yaml",
    "machineconfiguration/v1/zz_generated.crd-manifests/*_machineconfigpools-Default.crd.yaml",
    "config/v1/zz_generated.crd-manifests/*_clusterversions-Default.crd.yaml",
)
OPENSHIFT_PATHS = (
    "/apis/machineconfiguration.openshift.io/v1/machineconfigs",
    "/apis/machineconfiguration.openshift.io/v1/machineconfigpools",
    "/apis/config.openshift.io/v1/clusterversions",
)
HYPERCONVERGED_CRD_FILE = Path(__file__).with_name("hyperconverged.yaml")


def fetch_crds(components: Components) -> None:
    """Download the CRDs that these components need, unless cached. Raises `LocalClusterError` if a download fails."""
    fetchers: dict[str, Callable[[], object]] = {
        MUTEX: fetch_openshift_crd_files,
        VIRTUALIZATION: kubevirt.fetch_schemas_file,
    }
    for component in fetchers.keys() & set(components):
        fetchers[component]()


def install_crds(cluster: LocalCluster, components: Components) -> None:
    """Apply the CRDs that these components need; return when the API server serves their resources."""
    if MUTEX in components:
        _apply_crd_files(cluster, "OpenShift", fetch_openshift_crd_files(), OPENSHIFT_PATHS)
    if VIRTUALIZATION in components:
        kubevirt.install_crds(cluster)
    if CPU_LABELS in components:
        _apply_crd_files(cluster, "HyperConverged", [HYPERCONVERGED_CRD_FILE], (HYPERCONVERGEDS_PATH,))


def fetch_openshift_crd_files() -> list[Path]:
    """Return OpenShift's CRD files. Raises `LocalClusterError` if the Go module cannot be downloaded."""
    folder = build.download_program_module("openshift", OPENSHIFT_MODULE)
    return [file for pattern in OPENSHIFT_CRD_PATTERNS for file in sorted(folder.glob(pattern))]


def _apply_crd_files(cluster: LocalCluster, project: str, files: list[Path], paths: tuple[str, ...]) -> None:
    """Apply CRD files; return when the API server serves all `paths`."""
    cluster.kubectl("apply", "--server-side", *(argument for file in files for argument in ("-f", file)))
    wait_until_ready(f"{project}'s kinds", lambda: all(map(cluster.is_served, paths)), cluster.servers)
