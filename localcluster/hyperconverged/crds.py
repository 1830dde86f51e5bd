"""A minimal CRD of HyperConverged with the fields that the product reads; only the operator ships the original."""

from __future__ import annotations

from pathlib import Path

from kube.cpu.hyperconverged import PATH
from localcluster.cluster import LocalCluster
from localcluster.processes import await_ready

FILE = Path(__file__).with_name("crd.yaml")


def install(cluster: LocalCluster) -> None:
    """Apply the CRD; return when its kind is served."""
    cluster.kubectl("apply", "--server-side", "-f", FILE)
    await_ready("HyperConverged's kind", lambda: cluster.serves(PATH), cluster.servers)
