"""Credentials for the API server, the real nodes and etcd: users, and certificates for mutual TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from localcluster import access

KUBE_PROXY_USER = "system:kube-proxy"
KUBELET_CLIENT_USER = "kube-apiserver-kubelet-client"


def get_node_name(number: int) -> str:
    """Return the name of the real node with this number."""
    return f"real-{number}"


def get_kubelet_user(number: int) -> str:
    """Return the user name of the kubelet on the real node with this number."""
    return f"system:node:{get_node_name(number)}"


def list_users(count: int) -> dict[str, tuple[str, ...]]:
    """Return the groups of each user that `count` real nodes need, by user name."""
    if not count:
        return {}
    kubelets = {get_kubelet_user(number): ("system:nodes", access.AUTHENTICATED) for number in range(1, count + 1)}
    return {KUBE_PROXY_USER: (access.AUTHENTICATED,), **kubelets}


class KubeletClientCertificate:
    """The client certificate with which the API server calls kubelets; its files are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.ca_file, self.certificate_file, self.key_file = (
            directory / f"kubelet-client{ending}" for ending in ("-ca.crt", ".crt", ".key")
        )

    def write_certificate(self) -> None:
        """Issue the certificate, and write it with its key and its CA certificate."""
        self.ca_file.write_text(
            access.write_certificate("kubelets", [KUBELET_CLIENT_USER], self.certificate_file, self.key_file)
        )

    def build_apiserver_flags(self) -> tuple[str, ...]:
        """Return the API server flags for calls to kubelets and pods, and for the Node authorizer."""
        return (
            "--authorization-mode=Node,RBAC",
            f"--kubelet-client-certificate={self.certificate_file}",
            f"--kubelet-client-key={self.key_file}",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-aggregator-routing=true",  # Without kube-proxy, the API server calls webhooks at pod addresses.
        )


class EtcdCertificate:
    """The certificate with which etcd and the API server authenticate each other; its files are in `directory`.

    Kubelets run as root and act on the content of etcd, so no other user of this host may write to etcd.
    """

    def __init__(self, directory: Path) -> None:
        self.ca_file, self.certificate_file, self.key_file = (
            directory / f"etcd{ending}" for ending in ("-ca.crt", ".crt", ".key")
        )

    def write_certificate(self, address: str) -> None:
        """Issue the certificate for etcd's listen address, and write it with its key and its CA certificate."""
        self.ca_file.write_text(access.write_certificate("etcd", [address], self.certificate_file, self.key_file))

    def build_server_flags(self) -> Iterator[str]:
        """Yield etcd's flags: etcd requires certificates of this CA from its clients and peers."""
        for prefix in ("", "peer-"):
            yield f"--{prefix}cert-file={self.certificate_file}"
            yield f"--{prefix}key-file={self.key_file}"
            yield f"--{prefix}trusted-ca-file={self.ca_file}"
            yield f"--{prefix}client-cert-auth=true"

    def build_client_flags(self) -> tuple[str, ...]:
        """Return the API server's flags for its connection to etcd."""
        return (
            f"--etcd-cafile={self.ca_file}",
            f"--etcd-certfile={self.certificate_file}",
            f"--etcd-keyfile={self.key_file}",
        )
