"""OpenShift's own CRDs of MachineConfig, MachineConfigPool and ClusterVersion, downloaded with its Go module."""

from __future__ import annotations

from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.processes import await_ready
from localcluster.programs import build

MODULE = "github.com/openshift/api"
FILES = (
    "machineconfiguration/v1/zz_generated.crd-manifests/*_machineconfigs.crd.yaml",
    "machineconfiguration/v1/zz_generated.crd-manifests/*_machineconfigpools-Default.crd.yaml",
    "config/v1/zz_generated.crd-manifests/*_clusterversions-Default.crd.yaml",
)
SERVED = (
    "/apis/machineconfiguration.openshift.io/v1/machineconfigs",
    "/apis/machineconfiguration.openshift.io/v1/machineconfigpools",
    "/apis/config.openshift.io/v1/clusterversions",
)


def files() -> list[Path]:
    """Return the CRD files. Raises `LocalClusterError` if the module cannot be fetched."""
    folder = build.module_folder("openshift", MODULE)
    return [file for pattern in FILES for file in sorted(folder.glob(pattern))]


def install(cluster: LocalCluster) -> None:
    """Apply the CRDs; return when all kinds are served."""
    cluster.kubectl("apply", "--server-side", *(word for file in files() for word in ("-f", file)))
    await_ready("OpenShift's kinds", lambda: all(cluster.serves(path) for path in SERVED), cluster.servers)
