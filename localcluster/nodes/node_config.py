"""The configuration files of a node's containerd, CNI plugins, kubelet and kube-proxy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.nodes.node_network import DNS_ADDRESS, NodeNetwork

PAUSE_IMAGE = "localhost/busybox:local"
"""The image of a pod's sandbox container."""
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CLUSTER_DOMAIN = "cluster.local"
REGISTRY_HOST = f"registry.registry.svc.{CLUSTER_DOMAIN}:5000"
"""The host and port of the add-on `addons.REGISTRY` in image names."""
REGISTRY_ADDRESS = "10.0.0.12:5000"
"""The registry's address for containerd, which does not use cluster DNS."""
CONTAINERD_TEMPLATE = """version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  # Without the right to lower oom_score_adj, containerd adjusts the value instead of failing to start the container.
  restrict_oom_score_adj = true
  sandbox_image = "{pause}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{folder}/registries"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""

REGISTRY_TEMPLATE = """server = "http://{host}"
[host."http://{address}"]
  capabilities = ["pull", "resolve"]
"""


@dataclass(frozen=True)
class NodeConfig:
    """The configuration of one node.

    Attributes:
        node_number: The node's number, from 1.
        name: The node's name.
        directory: The node's directory.
        network: The addresses of the cluster's network.
        cni_plugins: The directory of the CNI plugins.
        ca_file: The CA file with which the kubelet verifies the API server's client certificate.
        cgroup: The node's control group.
        snapshotter: The containerd snapshotter, which stores the image layers.
    """

    node_number: int
    name: str
    directory: Path
    network: NodeNetwork
    cni_plugins: Path
    ca_file: Path
    cgroup: str
    snapshotter: str

    def write_files(self) -> None:
        """Write the configuration files to the node's directory."""
        cni = self.directory / "cni"
        for folder in (cni, self.directory / "static"):
            folder.mkdir()
        (self.directory / "resolv.conf").write_text("")  # CoreDNS resolves no names outside the cluster.
        (self.directory / "containerd.toml").write_text(self._build_containerd_config())
        registry = self.directory / "registries" / REGISTRY_HOST
        registry.mkdir(parents=True)
        (registry / "hosts.toml").write_text(REGISTRY_TEMPLATE.format(host=REGISTRY_HOST, address=REGISTRY_ADDRESS))
        (cni / "10-nodes.conflist").write_text(json.dumps(self._build_cni_config()))
        (self.directory / "kubelet.yaml").write_text(json.dumps(self._build_kubelet_config()))
        (self.directory / "kube-proxy.yaml").write_text(json.dumps(self._build_kube_proxy_config()))

    def _build_containerd_config(self) -> str:
        values = {"folder": self.directory, "plugins": self.cni_plugins, "snapshotter": self.snapshotter}
        return CONTAINERD_TEMPLATE.format(socket=CONTAINERD_SOCKET, pause=PAUSE_IMAGE, **values)

    def _build_cni_config(self) -> dict[str, Any]:
        """Return the pods' bridge network for CNI; it does no masquerading, since nodes have routes to each other."""
        ranges = [[{"subnet": self.network.get_pod_cidr(self.node_number)}]]
        bridge = {
            "type": "bridge",
            "bridge": "pods",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni"},
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "nodes", "plugins": [bridge, ports]}

    def _build_kubelet_config(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.network.get_node_address(self.node_number),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "staticPodPath": str(self.directory / "static"),
            "volumePluginDir": str(self.directory / "volumeplugins"),
            "resolvConf": str(self.directory / "resolv.conf"),
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": CLUSTER_DOMAIN,
            **self._build_resource_settings(),
        }

    def _build_resource_settings(self) -> dict[str, Any]:
        """Return resource settings for a shared host: no reservations, no evictions until the host is almost full."""
        return {
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }

    def _build_kube_proxy_config(self) -> dict[str, Any]:
        unchanged = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "hostnameOverride": self.name,
            "clusterCIDR": self.network.cidr,
            "clientConnection": {"kubeconfig": str(self.directory / "kube-proxy.kubeconfig")},
            "conntrack": unchanged,  # The conntrack limits apply to the whole host, not to one namespace.
            "oomScoreAdj": 0,
        }
