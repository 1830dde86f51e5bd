"""The real nodes of a cluster: their images, network and processes, from start to cleanup."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.nodes import cgroups, identities, images, node_network, sandbox
from localcluster.nodes.node import RealNode, detect_snapshotter
from localcluster.nodes.node_config import PAUSE_IMAGE, NodeConfig
from localcluster.nodes.node_network import build_switch
from localcluster.processes import Server, Startable, wait_until_ready
from localcluster.programs import build, packages

DNS_MANIFEST = Path(__file__).with_name("dns.yaml")
DNS_REPLICAS = 2
"""Number of CoreDNS replicas. Each replica needs its own node, so a cluster with one real node has one replica."""
COREDNS_IMAGE = "localhost/coredns:local"
BUSYBOX_APPLETS = (
    *("sh", "sleep", "wget", "nslookup", "httpd", "nc", "cat", "touch", "echo", "true", "false", "date", "ls"),
    *("kill", "mkdir"),
)
"""The commands in the image for containers and pod sandboxes."""
TIMEOUT_SECONDS = 60
PRIVATE_DIRS = (Path("/run"), Path("/var"))
"""Host directories that each real node replaces with private ones."""
FORBIDDEN_CHARS = frozenset(',:\\"')
"""Characters with a special meaning in the options of an overlay mount or in containerd's configuration."""
ENDPOINT_SLICES_PATH = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
KUBELET_API_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": identities.KUBELET_CLIENT_USER},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": identities.KUBELET_CLIENT_USER}],
}
"""Authorizes the API server to call the kubelets' API, for example to read logs."""


class RealNodes(Startable):
    """Real nodes next to kwok's nodes, on a cluster that was created with `LocalCluster(real_nodes=...)`.

    `start` starts the nodes. `wait_until_ready` then installs cluster DNS, and waits until the nodes are Ready.

    Args:
        count: The number of real nodes.
        archives: The archives of further images that each node needs.
    """

    def __init__(self, cluster: LocalCluster, count: int, archives: Iterable[Path] = ()) -> None:
        self._cluster, self._count, self._archives = cluster, count, archives
        self.directory = cluster.directory / "nodes"
        self.cgroup = cgroups.get_cgroup_name(cluster.directory)
        self._programs = build.ensure_programs(build.NODES)
        self.nodes: list[RealNode] = []
        self._switch: sandbox.Sandbox | None = None
        self._network: node_network.NodeNetwork | None = None

    def _start_and_wait(self) -> None:
        """Start the network switch, then the nodes concurrently; return before the nodes are Ready."""
        check_node_directory(self.directory)
        network = self._network = node_network.reserve_network()
        self._switch = build_switch(self.directory / "switch", network, self._cluster.port)
        self._switch.start()
        archives = [*self._write_images(), *self._archives]
        self._grant_access(network)
        snapshotter = detect_snapshotter(self.directory / "trial")
        numbers = range(1, self._count + 1)
        self.nodes = [self._build_node(number, network, self._switch, snapshotter) for number in numbers]
        images.install_images(archives, snapshotter, (node.directory for node in self.nodes))
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(RealNode.start, self.nodes))

    def wait_until_ready(self) -> None:
        """Install CoreDNS; return when CoreDNS runs and all nodes are Ready.

        CoreDNS must be installed last. When CoreDNS's pods are created, the API server looks up the kind of their
        owner, and discovers all kinds for that. The API server repeats this discovery only after half a minute. Until
        then, it rejects owners of kinds that were created later.
        """
        self._apply_coredns_manifest()
        names = {node.name for node in self.nodes}
        wait_until_ready(
            "the real nodes", lambda: names <= self._cluster.list_ready_nodes(), self.servers, TIMEOUT_SECONDS
        )
        self._cluster.kubectl(
            "rollout", "status", "-n", "kube-system", "deployment/coredns", f"--timeout={TIMEOUT_SECONDS}s"
        )

    @property
    def servers(self) -> list[Server]:
        """Return the processes of the switch and of all nodes."""
        holders = [self._switch.holder] if self._switch else []
        return [*holders, *(server for node in self.nodes for server in node.servers)]

    def stop(self) -> None:
        """Kill the nodes' processes, and remove the nodes' control groups and large directories."""
        for node in self.nodes:
            node.kill()
        if self._switch:
            self._switch.kill()
        if self._network:
            self._network.release()
        cgroups.remove_leftover_cgroups_and_data(self._cluster.directory)

    def get_node(self, name: str) -> RealNode:
        """Return the node with this name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def host_address(self) -> str:
        """Return the address at which pods reach this host, or "" before the nodes are started."""
        return self._network.host_address if self._network else ""

    def _build_node(
        self, number: int, network: node_network.NodeNetwork, switch: sandbox.Sandbox, snapshotter: str
    ) -> RealNode:
        name = identities.get_node_name(number)
        folder = self.directory / name
        group = f"{self.cgroup}/{name}"
        cgroups.create_cgroup(group)
        settings = NodeConfig(
            node_number=number,
            name=name,
            directory=folder,
            network=network,
            cni_plugins=packages.find_program("host-local").parent,
            ca_file=identities.KubeletClientCertificate(self._cluster.pki).ca_file,
            cgroup=group,
            snapshotter=snapshotter,
        )
        node = RealNode(settings, network, switch, self._programs)
        url = f"https://{network.switch_address}:{self._cluster.port}"
        for program, user in (
            ("kubelet", identities.get_kubelet_user(number)),
            ("kube-proxy", identities.KUBE_PROXY_USER),
        ):
            self._write_kubeconfig(folder / f"{program}.kubeconfig", url, user)
        return node

    def _write_kubeconfig(self, file: Path, url: str, user: str) -> None:
        """Write a kubeconfig for a client on a node, which reaches the API server through the switch.

        The kubeconfig sets `tls-server-name`, because the API server's certificate lacks the switch's address.
        """
        token = self._cluster.get_token(user)
        access.write_kubeconfig(file, url, self._cluster.certificate, user, token, "kubernetes.default.svc")

    def _write_images(self) -> list[Path]:
        """Write the archives of the images that every node needs; return their paths."""
        busybox, coredns = packages.find_program("busybox").resolve(), self._programs / "coredns"
        busybox_image = images.Image(PAUSE_IMAGE, busybox, ("/bin/busybox", "sleep", "2000000000"), BUSYBOX_APPLETS)
        return [
            images.write_image(busybox_image, self.directory / "busybox.tar"),
            images.write_image(images.Image(COREDNS_IMAGE, coredns, ("/bin/coredns",)), self.directory / "coredns.tar"),
        ]

    def _grant_access(self, network: node_network.NodeNetwork) -> None:
        """Create the EndpointSlice with the API server's address for pods, and authorize calls to the kubelets."""
        client = self._cluster.get_client()
        client.create(ENDPOINT_SLICES_PATH, _build_kubernetes_endpoints(network.switch_address, self._cluster.port))
        client.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", KUBELET_API_BINDING)

    def _apply_coredns_manifest(self) -> None:
        manifest = DNS_MANIFEST.read_text().replace("{replicas}", str(min(DNS_REPLICAS, self._count)))
        self._cluster.kubectl("apply", "--server-side", "-f", "-", input=manifest)


def _build_kubernetes_endpoints(address: str, port: int) -> dict[str, Any]:
    """Return the EndpointSlice of the Service `kubernetes`, with the API server's address and port."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


def check_node_directory(directory: Path) -> None:
    """Raise `LocalClusterError` if nodes cannot run in this directory."""
    if any(path in directory.parents for path in PRIVATE_DIRS):
        raise LocalClusterError(
            f"directory {directory} is below /run or /var, which each real node replaces: use another directory"
        )
    if not FORBIDDEN_CHARS.isdisjoint(str(directory)):
        characters = " ".join(sorted(FORBIDDEN_CHARS))
        raise LocalClusterError(f"directory {directory} has one of {characters} in its path: use another directory")
