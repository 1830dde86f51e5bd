"""One real node: its namespaces, and containerd, kubelet and kube-proxy in them."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

from localcluster.nodes.node_network import Addresses
from localcluster.nodes.sandbox import Room
from localcluster.nodes.node_config import SOCKET, Settings
from localcluster.processes import Server, await_ready, start_saying
from localcluster.errors import LocalClusterError

OUTSIDE = """
nsenter --target "$(cat {switch})" --net ip link add {name} type veth peer name eth0 netns $PID
nsenter --target "$(cat {switch})" --net ip link set {name} master nodes up
nsenter --target "$(cat {switch})" --net ip route replace {pods} via {address}
"""
# The node gets the host's /var as a read-only lower layer; its own writes stay in memory. The logs and the kubelet's
# directory are in the cluster's directory. A kubelet requires some kernel settings, which belong to the host; bind
# mounts show it the required values.
INSIDE = """
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
SERVES_PODS = "Start streaming server"
"""The message that containerd logs once it serves CRI.

With many images, containerd serves CRI long after its other services. A kubelet that connects too early exits.
"""


class RealNode:
    """A real node.

    `folder` must have the kubeconfig files `kubelet.kubeconfig` and `kube-proxy.kubeconfig` before the node starts.

    Args:
        settings: The node's configuration.
        addresses: The addresses of the cluster's network.
        switch: The namespaces of the switch.
        programs: The directory of the built programs.
    """

    def __init__(self, settings: Settings, addresses: Addresses, switch: Room, programs: Path) -> None:
        self.settings, self.name, self.folder = settings, settings.name, settings.folder
        told = {
            "name": self.name,
            "folder": shlex.quote(str(self.folder)),
            "address": addresses.node(settings.number),
            "pods": addresses.pods(settings.number),
        }
        outside = OUTSIDE.format(switch=shlex.quote(str(switch.file)), **told)
        inside = INSIDE.format(switch=addresses.switch, **told)
        self.room = Room(self.name, self.folder, outside, inside)
        settings.write()
        self.containerd = self.room.server("containerd", "containerd", "--config", self.folder / "containerd.toml")
        self.kubelet = self.room.server("kubelet", programs / "kubelet", *self._kubelet(addresses))
        proxy = self.folder / "kube-proxy.yaml"
        self.proxy = self.room.server("kube-proxy", programs / "kube-proxy", f"--config={proxy}")

    def _kubelet(self, addresses: Addresses) -> Iterable[str]:
        yield f"--config={self.folder / 'kubelet.yaml'}"
        yield f"--kubeconfig={self.folder / 'kubelet.kubeconfig'}"
        yield f"--hostname-override={self.name}"
        yield f"--node-ip={addresses.node(self.settings.number)}"
        yield "--node-labels=node.kubernetes.io/instance-type=real"

    @property
    def servers(self) -> list[Server]:
        """Return all processes, starting with the one that holds the namespaces."""
        return [self.room.holder, self.containerd, self.kubelet, self.proxy]

    def start(self) -> None:
        """Start all processes without waiting for the node to be Ready; `store.give` must have run before."""
        self.room.open()
        self.proxy.start()
        start_saying(SERVES_PODS, [self.containerd])
        await_ready(f"containerd of {self.name}", self._answers, [self.containerd])
        self.kubelet.start()

    def _answers(self) -> bool:
        """Return whether containerd answers on its socket, which another of its threads serves."""
        try:
            self.room.run("ctr", "--address", SOCKET, "version")
        except LocalClusterError:
            return False
        return True

    def tag(self, image: str, name: str) -> None:
        """Add another name to an image in containerd."""
        self.room.run(*self._ctr("images", "tag", image, name))

    def running(self, pod: str = "") -> set[str]:
        """Return the ids of the running containers in containerd: those of the pod with this UID, or all.

        The result includes each pod's sandbox container.
        """
        lines = self.room.run(*self._ctr("tasks", "list")).splitlines()[1:]
        alive = {words[0] for words in map(str.split, lines) if words[2] == "RUNNING"}
        chosen = [f'labels."io.kubernetes.pod.uid"=={pod}'] if pod else []
        return alive & set(self.room.run(*self._ctr("containers", "list", "--quiet", *chosen)).split())

    def _ctr(self, *words: str | Path) -> list[str | Path]:
        return ["ctr", "--address", SOCKET, "--namespace", "k8s.io", *words]

    def close(self) -> None:
        """Kill all processes to simulate a power failure."""
        for server in reversed(self.servers):
            server.kill()


def snapshotter(folder: Path) -> str:
    """Return the containerd snapshotter for a directory: overlayfs if its file system supports it, else native."""
    for name in ("lower", "upper", "work", "merged"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    mount = ["unshare", "--mount", "mount", "-t", "overlay", "-o", options, "overlay", str(folder / "merged")]
    return "native" if subprocess.run(mount, capture_output=True, check=False).returncode else "overlayfs"
