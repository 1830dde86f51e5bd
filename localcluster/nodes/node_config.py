"""The configuration files of a node's containerd, CNI plugins, kubelet and kube-proxy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.nodes.node_network import DNS, Addresses

PAUSE = "localhost/busybox:local"
"""The image of a pod's sandbox container."""
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
    """The configuration of one node.

    Attributes:
        number: The node's number, from 1.
        addresses: The addresses of the cluster's network.
        plugins: The directory of the CNI plugins.
        authority: The CA file for the API server's client certificate.
        group: The node's control group.
        snapshotter: The containerd snapshotter, which stores the image layers.
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
        (self.folder / "resolv.conf").write_text("")  # names outside the cluster are not resolved
        (self.folder / "containerd.toml").write_text(self._containerd())
        (cni / "10-nodes.conflist").write_text(json.dumps(self._network()))
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet()))
        (self.folder / "kube-proxy.yaml").write_text(json.dumps(self._proxy()))

    def _containerd(self) -> str:
        told = {"folder": self.folder, "plugins": self.plugins, "snapshotter": self.snapshotter}
        return CONTAINERD.format(socket=SOCKET, pause=PAUSE, **told)

    def _network(self) -> dict[str, Any]:
        """Return the pods' bridge network; it needs no masquerading, since the nodes have routes to each other."""
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
        """Return the resource settings for a shared host: no reservations, and eviction only when it is almost full."""
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
            "conntrack": nothing,  # conntrack limits belong to the host, not to a namespace
            "oomScoreAdj": 0,
        }
