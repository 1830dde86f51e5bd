"""What containerd, CNI's plugins, kubelet and kube-proxy of a node are told, each in a file of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.nodes.addresses import DNS, Addresses

PAUSE = "localhost/busybox:local"
"""The image of the process that holds a pod's namespaces."""
SOCKET = "/run/containerd/containerd.sock"
DOMAIN = "cluster.local"
CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  # Who may not raise a process above others has it refused, and the container with it.
  restrict_oom_score_adj = true
  sandbox_image = "{pause}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


@dataclass(frozen=True)
class Settings:
    """One node's.

    Attributes:
        number: of the node, from 1.
        folder: its own.
        plugins: the folder with CNI's.
        authority: the file of who signs the API server's certificate.
        group: the node's control group.
        snapshotter: how containerd keeps the layers of images.
    """

    number: int
    name: str
    folder: Path
    addresses: Addresses
    plugins: Path
    authority: Path
    group: str
    snapshotter: str

    def write(self) -> None:
        """Write all files."""
        cni = self.folder / "cni"
        for folder in (cni, self.folder / "static"):
            folder.mkdir()
        (self.folder / "resolv.conf").write_text("")  # nothing outside has a name here
        (self.folder / "containerd.toml").write_text(self._containerd())
        (cni / "10-nodes.conflist").write_text(json.dumps(self._network()))
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet()))
        (self.folder / "kube-proxy.yaml").write_text(json.dumps(self._proxy()))

    def _containerd(self) -> str:
        told = {"folder": self.folder, "plugins": self.plugins, "snapshotter": self.snapshotter}
        return CONTAINERD.format(socket=SOCKET, pause=PAUSE, **told)

    def _network(self) -> dict[str, Any]:
        """Give a bridge for the node's pods; nobody's address is replaced, since all know the way to each other."""
        ranges = [[{"subnet": self.addresses.pods(self.number)}]]
        bridge = {
            "type": "bridge",
            "bridge": "pods",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni"},
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "nodes", "plugins": [bridge, ports]}

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.addresses.node(self.number),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.authority)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "staticPodPath": str(self.folder / "static"),
            "volumePluginDir": str(self.folder / "volumeplugins"),
            "resolvConf": str(self.folder / "resolv.conf"),
            "clusterDNS": [DNS],
            "clusterDomain": DOMAIN,
            **self._limits(),
        }

    def _limits(self) -> dict[str, Any]:
        """Give what it does with a machine that is not its own: it takes what is there, and evicts and deletes late."""
        return {
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }

    def _proxy(self) -> dict[str, Any]:
        nothing = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "hostnameOverride": self.name,
            "clusterCIDR": self.addresses.all,
            "clientConnection": {"kubeconfig": str(self.folder / "kube-proxy.kubeconfig")},
            "conntrack": nothing,  # limits are the machine's, not a namespace's
            "oomScoreAdj": 0,
        }
