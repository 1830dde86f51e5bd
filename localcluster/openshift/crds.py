"""OpenShift's own CRDs of MachineConfig, MachineConfigPool and ClusterVersion, downloaded with its Go module."""

from __future__ import annotations

from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready
from localcluster.programs import build

MODULE = "github.com/openshift/api"
CRD_PATTERNS = (
    "machineconfiguration/v1/zz_generated.crd-manifests/*_machineconfigs.crd.yaml",
    "machineconfiguration/v1/zz_generated.crd-manifests/*_machineconfigpools-Default.crd.yaml",
    "config/v1/zz_generated.crd-manifests/*_clusterversions-Default.crd.yaml",
)
SERVED_PATHS = (
    "/apis/machineconfiguration.openshift.io/v1/machineconfigs",
    "/apis/machineconfiguration.openshift.io/v1/machineconfigpools",
    "/apis/config.openshift.io/v1/clusterversions",
)


def fetch_crd_files() -> list[Path]:
    """Return the CRD files. Raises `LocalClusterError` if the module cannot be fetched."""
    folder = build.download_program_module("openshift", MODULE)
    return [file for pattern in CRD_PATTERNS for file in sorted(folder.glob(pattern))]


def install_crds(cluster: LocalCluster) -> None:
    """Apply the CRDs; return when all kinds are served."""
    cluster.kubectl("apply", "--server-side", *(argument for file in fetch_crd_files() for argument in ("-f", file)))
    wait_until_ready(
        "OpenShift's kinds", lambda: all(cluster.is_served(path) for path in SERVED_PATHS), cluster.servers
    )
