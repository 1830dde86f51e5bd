"""The CRDs of other projects that the opt-in components need: downloads them and applies them to a cluster."""

from __future__ import annotations

from collections.abc import Callable

from localcluster.cluster import LocalCluster
from localcluster.components.selection import CPU_LABELS, MUTEX, VIRTUALIZATION, Components
from localcluster.hyperconverged import crds as hyperconverged
from localcluster.kubevirt import crds as kubevirt
from localcluster.openshift import crds as openshift

FETCHERS: dict[str, Callable[[], object]] = {
    MUTEX: openshift.fetch_crd_files,
    VIRTUALIZATION: kubevirt.fetch_schemas_file,
}
INSTALLERS = {
    MUTEX: openshift.install_crds,
    VIRTUALIZATION: kubevirt.install_crds,
    CPU_LABELS: hyperconverged.install_crd,
}


def fetch_crds(components: Components) -> None:
    """Download the CRDs that these components need, unless cached. Raises `LocalClusterError` if a download fails."""
    for component in FETCHERS.keys() & set(components):
        FETCHERS[component]()


def install_crds(cluster: LocalCluster, components: Components) -> None:
    """Apply the CRDs that these components need; return when their kinds are served."""
    for component in INSTALLERS.keys() & set(components):
        INSTALLERS[component](cluster)
