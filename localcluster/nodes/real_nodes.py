"""The real nodes of a cluster: their images, network and processes, from start to cleanup."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.nodes import node_network, cgroups, identities, images, cleanup, sandbox, image_store
from localcluster.nodes.node import RealNode, snapshotter
from localcluster.nodes.node_config import PAUSE, Settings
from localcluster.nodes.switch import switch
from localcluster.processes import Server, Startable, await_ready
from localcluster.programs import build, packages
from localcluster.errors import LocalClusterError

DNS = Path(__file__).with_name("dns.yaml")
DNS_PODS = 2
"""Each replica needs a node of its own, so with one node there is only one replica."""
COREDNS = "localhost/coredns:local"
TOOLS = (
    *("sh", "sleep", "wget", "nslookup", "httpd", "nc", "cat", "touch", "echo", "true", "false", "date", "ls"),
    *("kill", "mkdir"),
)
"""The commands in the minimal container image."""
SECONDS = 60
ITS_OWN = (Path("/run"), Path("/var"))
"""Directories that a node replaces with its own."""
MEANINGFUL = frozenset(',:\\"')
"""Characters with a special meaning in the options of an overlay mount or in containerd's configuration."""
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
ASKS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": identities.CALLER},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": identities.CALLER}],
}
"""Authorizes the API server to call kubelets, for example for logs."""


class RealNodes(Startable):
    """Real kubelets next to kwok's nodes, on a cluster that was created with `LocalCluster(real=...)`.

    Entering starts the nodes. `await_ready` waits until they are Ready, and installs cluster DNS.

    Args:
        count: The number of real nodes.
        archives: Images for each node, in addition to the default ones.
    """

    def __init__(self, cluster: LocalCluster, count: int, archives: Iterable[Path] = ()) -> None:
        self._cluster, self._count, self._archives = cluster, count, archives
        self.folder = cluster.directory / "nodes"
        self.group = cgroups.name(cluster.directory)
        self._programs = build.servers(build.NODES)
        self.nodes: list[RealNode] = []
        self._switch: sandbox.Room | None = None
        self._network: node_network.Addresses | None = None

    def _bring_up(self) -> None:
        """Start the switch, then the nodes concurrently."""
        check_place(self.folder)
        network = self._network = node_network.choose()
        self._switch = switch(self.folder / "switch", network, self._cluster.port)
        self._switch.open()
        known = [*self._images(), *self._archives]
        self._let_in(network)
        layers = snapshotter(self.folder / "trial")
        self.nodes = [self._node(number, network, self._switch, layers) for number in range(1, self._count + 1)]
        image_store.give(known, layers, (node.folder for node in self.nodes))
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(RealNode.start, self.nodes))

    def await_ready(self) -> None:
        """Install CoreDNS; return when it runs and all nodes are Ready.

        CoreDNS must be installed after everything else. Its pods have an owner, for which the API server discovers the
        existing kinds, and it repeats the discovery only after half a minute. Until then it rejects owners of newer
        kinds.
        """
        self._name_services()
        names = {node.name for node in self.nodes}
        await_ready("the real nodes", lambda: names <= self._cluster.ready_nodes(), self.servers, SECONDS)
        self._cluster.kubectl("rollout", "status", "-n", "kube-system", "deployment/coredns", f"--timeout={SECONDS}s")

    @property
    def servers(self) -> list[Server]:
        """Return all processes."""
        holders = [self._switch.holder] if self._switch else []
        return [*holders, *(server for node in self.nodes for server in node.servers)]

    def stop(self) -> None:
        """Kill the nodes, and remove their control groups and large directories."""
        for node in self.nodes:
            node.close()
        if self._switch:
            self._switch.close()
        if self._network:
            self._network.release()
        cleanup.clear(self._cluster.directory)

    def node(self, name: str) -> RealNode:
        """Return the node with this name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def machine(self) -> str:
        """Return this host's address for pods; "" before the nodes are started."""
        return self._network.machine if self._network else ""

    def _node(self, number: int, network: node_network.Addresses, way: sandbox.Room, layers: str) -> RealNode:
        name = identities.name(number)
        folder = self.folder / name
        group = f"{self.group}/{name}"
        cgroups.make(group)
        settings = Settings(
            number=number,
            name=name,
            folder=folder,
            addresses=network,
            plugins=packages.find("host-local").parent,
            authority=identities.Caller(self._cluster.pki).authority,
            group=group,
            snapshotter=layers,
        )
        node = RealNode(settings, network, way, self._programs)
        url = f"https://{network.switch}:{self._cluster.port}"
        for program, user in (("kubelet", identities.kubelet(number)), ("kube-proxy", identities.PROXY)):
            self._introduce(folder / f"{program}.kubeconfig", url, user)
        return node

    def _introduce(self, file: Path, url: str, user: str) -> None:
        """Write a kubeconfig for a client that reaches the API server through the switch.

        It sets `tls-server-name`, since the API server's certificate does not contain the switch's address.
        """
        token = self._cluster.token(user)
        access.write_kubeconfig(file, url, self._cluster.certificate, user, token, "kubernetes.default.svc")

    def _images(self) -> list[Path]:
        """Write the images that every node has from the start."""
        busybox, coredns = packages.find("busybox").resolve(), self._programs / "coredns"
        small = images.Image(PAUSE, busybox, ("/bin/busybox", "sleep", "2000000000"), TOOLS)
        return [
            images.write(small, self.folder / "busybox.tar"),
            images.write(images.Image(COREDNS, coredns, ("/bin/coredns",)), self.folder / "coredns.tar"),
        ]

    def _let_in(self, network: node_network.Addresses) -> None:
        """Publish the API server's address, and authorize the API server to call kubelets."""
        door = self._cluster.door()
        door.create(SLICES, _kubernetes(network.switch, self._cluster.port))
        door.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", ASKS)

    def _name_services(self) -> None:
        names = DNS.read_text().replace("{replicas}", str(min(DNS_PODS, self._count)))
        self._cluster.kubectl("apply", "--server-side", "-f", "-", input=names)


def _kubernetes(address: str, port: int) -> dict[str, Any]:
    """Return the EndpointSlice of the Service `kubernetes`."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


def check_place(folder: Path) -> None:
    """Raise `LocalClusterError` for a directory in which a node cannot run."""
    if any(place in folder.parents for place in ITS_OWN):
        raise LocalClusterError(f"{folder} is below /run or /var, of which a real node has its own: give another")
    if not MEANINGFUL.isdisjoint(str(folder)):
        raise LocalClusterError(f"{folder} has one of {' '.join(sorted(MEANINGFUL))} in its path: give another")
