"""One real node: its namespaces, and in them containerd, kubelet and kube-proxy."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

from localcluster.nodes.addresses import Addresses
from localcluster.nodes.rooms import Room
from localcluster.nodes.settings import SOCKET, Settings
from localcluster.processes import Server, await_ready, start_saying
from localcluster.trouble import LocalClusterError

OUTSIDE = """
nsenter --target "$(cat {switch})" --net ip link add {name} type veth peer name eth0 netns $PID
nsenter --target "$(cat {switch})" --net ip link set {name} master nodes up
nsenter --target "$(cat {switch})" --net ip route replace {pods} via {address}
"""
# Of /var the node sees the machine's, and keeps what it writes to itself, in memory; logs and pods' folders are the
# cluster's. A kubelet insists on some settings of the kernel, which are the machine's: it is shown that they are so.
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
"""A containerd answers before it serves CRI, the later the more images it has; and a kubelet that is refused ends."""


class RealNode:
    """In: its settings, the room of the switch, the folder of the built programs, and who it is to the API server.

    `folder` has its kubeconfig files, `kubelet.kubeconfig` and `kube-proxy.kubeconfig`, before it starts.
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
        """Give every process, the one that holds them first."""
        return [self.room.holder, self.containerd, self.kubelet, self.proxy]

    def start(self) -> None:
        """Start all; a node that is Ready comes later. Images are there before: `store.give`."""
        self.room.open()
        self.proxy.start()
        start_saying(SERVES_PODS, [self.containerd])
        await_ready(f"containerd of {self.name}", self._answers, [self.containerd])
        self.kubelet.start()

    def _answers(self) -> bool:
        """Whether its socket is served, too, which another thread of it sees to."""
        try:
            self.room.run("ctr", "--address", SOCKET, "version")
        except LocalClusterError:
            return False
        return True

    def tag(self, image: str, name: str) -> None:
        """Have containerd know an image that it has by another name, too."""
        self.room.run(*self._ctr("images", "tag", image, name))

    def running(self, pod: str = "") -> set[str]:
        """Give the ids of the containers with a process, of the pod with this UID or of all, as containerd knows them.

        One in each pod is that which holds its namespaces.
        """
        lines = self.room.run(*self._ctr("tasks", "list")).splitlines()[1:]
        alive = {words[0] for words in map(str.split, lines) if words[2] == "RUNNING"}
        chosen = [f'labels."io.kubernetes.pod.uid"=={pod}'] if pod else []
        return alive & set(self.room.run(*self._ctr("containers", "list", "--quiet", *chosen)).split())

    def _ctr(self, *words: str | Path) -> list[str | Path]:
        return ["ctr", "--address", SOCKET, "--namespace", "k8s.io", *words]

    def close(self) -> None:
        """End it as a power failure would."""
        for server in reversed(self.servers):
            server.kill()


def snapshotter(folder: Path) -> str:
    """Give how containerd can keep layers in a folder: one over the other where its file system lets it, or copied."""
    for name in ("lower", "upper", "work", "merged"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    mount = ["unshare", "--mount", "mount", "-t", "overlay", "-o", options, "overlay", str(folder / "merged")]
    return "native" if subprocess.run(mount, capture_output=True, check=False).returncode else "overlayfs"
