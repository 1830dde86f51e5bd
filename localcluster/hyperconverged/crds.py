"""A minimal CRD of HyperConverged with the fields that the product reads; only the operator ships the original."""

from __future__ import annotations

from pathlib import Path

from kube.cpu.hyperconverged import HYPERCONVERGEDS_PATH
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready

CRD_FILE = Path(__file__).with_name("crd.yaml")


def install_crd(cluster: LocalCluster) -> None:
    """Apply the CRD; return when its kind is served."""
    cluster.kubectl("apply", "--server-side", "-f", CRD_FILE)
    wait_until_ready("HyperConverged's kind", lambda: cluster.is_served(HYPERCONVERGEDS_PATH), cluster.servers)
