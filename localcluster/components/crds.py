"""The CRDs of other projects that the opt-in components need: downloads them and applies them to a cluster."""

from __future__ import annotations

from collections.abc import Callable

from localcluster.cluster import LocalCluster
from localcluster.hyperconverged import crds as hyperconverged
from localcluster.kubevirt import crds as kubevirt
from localcluster.openshift import crds as openshift
from localcluster.components.selection import CPU_LABELS, MUTEX, VIRTUALIZATION, Wings

FETCHED: dict[str, Callable[[], object]] = {MUTEX: openshift.files, VIRTUALIZATION: kubevirt.file}
INSTALLED = {MUTEX: openshift.install, VIRTUALIZATION: kubevirt.install, CPU_LABELS: hyperconverged.install}


def fetch(wings: Wings) -> None:
    """Download the CRDs that these components need, unless cached. Raises `LocalClusterError` if that fails."""
    for wing in FETCHED.keys() & set(wings):
        FETCHED[wing]()


def install(cluster: LocalCluster, wings: Wings) -> None:
    """Apply the CRDs that these components need; return when their kinds are served."""
    for wing in INSTALLED.keys() & set(wings):
        INSTALLED[wing](cluster)
