"""A small CRD of HyperConverged, with the fields that are read: its own one comes with its operator only."""

from __future__ import annotations

from pathlib import Path

from kube.cpu.hyperconverged import PATH
from localcluster.cluster import LocalCluster
from localcluster.processes import await_ready

FILE = Path(__file__).with_name("crd.yaml")


def install(cluster: LocalCluster) -> None:
    """Apply it; return when the kind is served."""
    cluster.kubectl("apply", "--server-side", "-f", FILE)
    await_ready("HyperConverged's kind", lambda: cluster.serves(PATH), cluster.servers)
