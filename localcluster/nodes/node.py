"""One real node: its Linux namespaces, in which containerd, kubelet and kube-proxy run."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.nodes.node_config import CONTAINERD_SOCKET, REGISTRY_ADDRESS, REGISTRY_HOST, NodeConfig
from localcluster.nodes.node_network import NodeNetwork
from localcluster.nodes.sandbox import Sandbox
from localcluster.processes import Server, start_and_wait_for_log, wait_until_ready

OUTSIDE_SCRIPT = """
nsenter --target "$(cat {switch})" --net ip link add {name} type veth peer name eth0 netns $PID
nsenter --target "$(cat {switch})" --net ip link set {name} master nodes up
nsenter --target "$(cat {switch})" --net ip route replace {pods} via {address}
"""
# The host's /var is the read-only lower layer of the node's /var; the node's writes stay in memory. The logs and the
# kubelet's files are in the cluster's directory. The kubelet requires some kernel settings, which the node shares with
# the host. So the script mounts files with the required values over these settings.
INSIDE_SCRIPT = """
mount --make-rprivate /
mount --make-rshared /
mount -t proc proc /proc
mkdir -p {folder}/own {folder}/run {folder}/log {folder}/kubelet
mount -t tmpfs tmpfs {folder}/own
mkdir {folder}/own/upper {folder}/own/work {folder}/own/sys
mount -t overlay -o lowerdir=/var,upperdir={folder}/own/upper,workdir={folder}/own/work overlay /var
mount --bind {folder}/run /run
mkdir -p /run/lock /run/netns /var/lib/kubelet /var/lib/cni
mount --bind {folder}/log /var/log
mount --bind {folder}/kubelet /var/lib/kubelet
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \\
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/proc/sys/${{setting%=*}}
    [ -e $file ] || continue
    echo ${{setting#*=}} > {folder}/own/sys/${{file##*/}}
    mount --bind {folder}/own/sys/${{file##*/}} $file
done
ip link set lo up
ip address add {address}/24 dev eth0
ip link set eth0 up
ip route add default via {switch}
echo 1 > /proc/sys/net/ipv4/ip_forward
"""
CRI_READY_LOG_LINE = "Start streaming server"
"""The message that containerd logs once it serves the Container Runtime Interface (CRI).

With many images, containerd serves the CRI long after its other services. A kubelet that connects too early exits.
"""


class RealNode:
    """A real node, with processes for containerd, kubelet and kube-proxy.

    The node's directory must contain `kubelet.kubeconfig` and `kube-proxy.kubeconfig` before the node starts.

    Args:
        config: The node's configuration.
        network: The addresses of the cluster's network.
        switch: The sandbox of the network's switch.
        programs: The directory of the built binaries.
    """

    def __init__(self, config: NodeConfig, network: NodeNetwork, switch: Sandbox, programs: Path) -> None:
        self.config, self.name, self.directory = config, config.name, config.directory
        values = {
            "name": self.name,
            "folder": shlex.quote(str(self.directory)),
            "address": network.get_node_address(config.node_number),
            "pods": network.get_pod_cidr(config.node_number),
        }
        outside = OUTSIDE_SCRIPT.format(switch=shlex.quote(str(switch.pid_file)), **values)
        inside = INSIDE_SCRIPT.format(switch=network.switch_address, **values)
        self.sandbox = Sandbox(self.name, self.directory, outside, inside)
        config.write_files()
        self.containerd = self.sandbox.build_server(
            "containerd", "containerd", "--config", self.directory / "containerd.toml"
        )
        self.kubelet = self.sandbox.build_server("kubelet", programs / "kubelet", *self._build_kubelet_flags(network))
        proxy = self.directory / "kube-proxy.yaml"
        self.kube_proxy = self.sandbox.build_server("kube-proxy", programs / "kube-proxy", f"--config={proxy}")

    def _build_kubelet_flags(self, network: NodeNetwork) -> Iterable[str]:
        yield f"--config={self.directory / 'kubelet.yaml'}"
        yield f"--kubeconfig={self.directory / 'kubelet.kubeconfig'}"
        yield f"--hostname-override={self.name}"
        yield f"--node-ip={network.get_node_address(self.config.node_number)}"
        yield "--node-labels=node.kubernetes.io/instance-type=real"

    @property
    def servers(self) -> list[Server]:
        """Return all processes, starting with the one that keeps the namespaces alive."""
        return [self.sandbox.holder, self.containerd, self.kubelet, self.kube_proxy]

    def start(self) -> None:
        """Start all processes without waiting for the node to be Ready; call `images.install_images` first."""
        self.sandbox.start()
        start_and_wait_for_log(CRI_READY_LOG_LINE, [self.containerd])
        wait_until_ready(f"containerd of {self.name}", self._is_containerd_ready, [self.containerd])
        self.kubelet.start()
        self.kube_proxy.start()  # kube-proxy exits unless the Node object gets its address within 30 s.

    def _is_containerd_ready(self) -> bool:
        """Return whether containerd responds on its socket; `CRI_READY_LOG_LINE` alone does not prove that."""
        try:
            self.sandbox.run("ctr", "--address", CONTAINERD_SOCKET, "version")
        except LocalClusterError:
            return False
        return True

    def tag_image(self, image: str, name: str) -> None:
        """Add `name` to an image in containerd."""
        self.sandbox.run(*self._build_ctr_command("images", "tag", image, name))

    def push_image(self, image: str, name: str, credentials: str) -> None:
        """Push an image from containerd to the cluster's registry under a name that starts with `REGISTRY_HOST`.

        Args:
            image: The image's name in containerd.
            name: The name in the registry.
            credentials: The user and the password, separated by a colon.
        """
        options = ("--plain-http", "--user", credentials, name.replace(REGISTRY_HOST, REGISTRY_ADDRESS))
        self.sandbox.run(*self._build_ctr_command("images", "push", *options, image))

    def list_running_containers(self, pod_uid: str = "") -> set[str]:
        """Return the ids of running containers in containerd: those of the pod with this UID, or all containers.

        The containers include each pod's sandbox container.
        """
        lines = self.sandbox.run(*self._build_ctr_command("tasks", "list")).splitlines()[1:]
        running_ids = {columns[0] for columns in map(str.split, lines) if columns[2] == "RUNNING"}
        filters = [f'labels."io.kubernetes.pod.uid"=={pod_uid}'] if pod_uid else []
        return running_ids & set(
            self.sandbox.run(*self._build_ctr_command("containers", "list", "--quiet", *filters)).split()
        )

    def _build_ctr_command(self, *arguments: str | Path) -> list[str | Path]:
        return ["ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", *arguments]

    def kill(self) -> None:
        """Kill all processes to simulate a power failure."""
        for server in reversed(self.servers):
            server.kill()


def detect_snapshotter(directory: Path) -> str:
    """Return containerd's snapshotter for a directory: overlayfs if the file system supports it, else native."""
    for name in ("lower", "upper", "work", "merged"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={directory}/lower,upperdir={directory}/upper,workdir={directory}/work"
    mount = ["unshare", "--mount", "mount", "-t", "overlay", "-o", options, "overlay", str(directory / "merged")]
    return "native" if subprocess.run(mount, capture_output=True, check=False).returncode else "overlayfs"
