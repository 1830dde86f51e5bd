"""Runs fakes of the projects on which the opt-in components depend: OpenShift's two operators, and KubeVirt.

Each fake is a process. KubeVirt's own control plane can replace its fake; then only KubeVirt's node agents are faked.
"""

from __future__ import annotations

import sys
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.components.selection import FAKES_ON, KUBEVIRT_ITSELF, MUTEX, VIRTUALIZATION, Components
from localcluster.kubevirt.control_plane import KubeVirtControlPlane
from localcluster.processes import Server, Startable, kill_all, wait_until_ready
from localcluster.servers import NO_PROXY_LOCAL_ENV, ROOT

SIMULATORS_MODULE = "localcluster.simulators"
FAKE_NAMES = {MUTEX: ("fake-cvo", "fake-mco"), VIRTUALIZATION: ("fake-virt",)}
"""The names of the fakes that each component needs."""
KUBEVIRT_NODE_FAKES = ("fake-virt-handler",)
"""The fakes that run next to KubeVirt's own control plane."""
WORKER_POOL_PATH = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools/worker"
UNVERSIONED_SELECTOR = (
    "!machineconfiguration.openshift.io/release-image-version,!node-role.kubernetes.io/control-plane,!localcluster/for"
)
"""Label selector of the workers without a version label, except for the node that runs Knative's pods."""


class Fakes(Startable):
    """The fakes that these components need, as processes on a cluster that has the CRDs of the faked projects.

    Args:
        directory: The directory for the logs.
        components: The installed components.
        fakes: One of `selection.FAKE_MODES`.
    """

    def __init__(self, cluster: LocalCluster, directory: Path, components: Components, fakes: str = FAKES_ON) -> None:
        self._cluster, self._components = cluster, components
        self._kubevirt = KubeVirtControlPlane(cluster, directory) if fakes == KUBEVIRT_ITSELF else None
        names_by_component = (
            {**FAKE_NAMES, VIRTUALIZATION: KUBEVIRT_NODE_FAKES} if fakes == KUBEVIRT_ITSELF else FAKE_NAMES
        )
        environment = {**NO_PROXY_LOCAL_ENV, "KUBECONFIG": str(cluster.kubeconfig)}
        self._fake_servers = [
            Server(name, [sys.executable, "-m", SIMULATORS_MODULE, name], directory / f"{name}.log", environment, ROOT)
            for component, names in names_by_component.items()
            for name in names
            if component in components
        ]

    def _start_and_wait(self) -> None:
        """Start the fakes, and KubeVirt's own control plane if selected.

        Return when OpenShift's pools and each worker's version exist, and KubeVirt's control plane is ready.
        """
        for server in self._fake_servers:
            server.start()
        if self._kubevirt:
            self._kubevirt.start()
        if MUTEX in self._components:
            wait_until_ready("the simulators of OpenShift's operators", self._are_fakes_ready, self._fake_servers)

    @property
    def servers(self) -> list[Server]:
        """Return the processes of the fakes and of KubeVirt's control plane."""
        return [*self._fake_servers, *(self._kubevirt.servers if self._kubevirt else [])]

    def stop(self) -> None:
        """Kill the processes; the objects that they created stay."""
        kill_all(self.servers)

    def _are_fakes_ready(self) -> bool:
        unversioned_workers = self._cluster.get_client().list("/api/v1/nodes", label_selector=UNVERSIONED_SELECTOR)
        return not unversioned_workers["items"] and self._cluster.is_served(WORKER_POOL_PATH)
