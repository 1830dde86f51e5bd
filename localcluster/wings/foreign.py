"""The kinds of other projects that opt-in wings stand on: fetched, and applied to a cluster."""

from __future__ import annotations

from collections.abc import Callable

from localcluster.cluster import LocalCluster
from localcluster.hyperconverged import crds as hyperconverged
from localcluster.kubevirt import crds as kubevirt
from localcluster.openshift import crds as openshift
from localcluster.wings.choice import CPU_LABELS, MUTEX, VIRTUALIZATION, Wings

FETCHED: dict[str, Callable[[], object]] = {MUTEX: openshift.files, VIRTUALIZATION: kubevirt.file}
INSTALLED = {MUTEX: openshift.install, VIRTUALIZATION: kubevirt.install, CPU_LABELS: hyperconverged.install}


def fetch(wings: Wings) -> None:
    """Fetch what these wings stand on, unless it is there; LocalClusterError where it cannot be fetched."""
    for wing in FETCHED.keys() & set(wings):
        FETCHED[wing]()


def install(cluster: LocalCluster, wings: Wings) -> None:
    """Apply the kinds that these wings stand on; return when they are served."""
    for wing in INSTALLED.keys() & set(wings):
        INSTALLED[wing](cluster)
