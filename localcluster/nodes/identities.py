"""Credentials of the API server, the real nodes and etcd: the nodes' users, and certificates for mutual TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from localcluster import access, certificates

PROXY = "system:kube-proxy"
CALLER = "kube-apiserver-kubelet-client"


def name(number: int) -> str:
    """Return the name of a real node."""
    return f"real-{number}"


def kubelet(number: int) -> str:
    """Return the user name of the kubelet of a real node."""
    return f"system:node:{name(number)}"


def users(count: int) -> dict[str, tuple[str, ...]]:
    """Return the users of `count` real nodes, with their groups."""
    if not count:
        return {}
    kubelets = {kubelet(number): ("system:nodes", access.AUTHENTICATED) for number in range(1, count + 1)}
    return {PROXY: (access.AUTHENTICATED,), **kubelets}


class Caller:
    """The API server's client certificate for kubelets, in a directory."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.certificate, self.key = (
            folder / f"kubelet-client{ending}" for ending in ("-ca.crt", ".crt", ".key")
        )

    def write(self) -> None:
        """Issue the certificate."""
        self.authority.write_text(certificates.write("kubelets", [CALLER], self.certificate, self.key))

    def flags(self) -> tuple[str, ...]:
        """Return the API server flags for calling kubelets and pods, and for authorizing kubelets."""
        return (
            "--authorization-mode=Node,RBAC",
            f"--kubelet-client-certificate={self.certificate}",
            f"--kubelet-client-key={self.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-aggregator-routing=true",  # webhooks are called at pod addresses: no kube-proxy on this host
        )


class Etcd:
    """The certificate with which etcd and the API server authenticate each other, in a directory.

    Kubelets that run as root act on the content of etcd, so no other user of this host may write to it.
    """

    def __init__(self, folder: Path) -> None:
        self.authority, self.certificate, self.key = (
            folder / f"etcd{ending}" for ending in ("-ca.crt", ".crt", ".key")
        )

    def write(self, address: str) -> None:
        """Issue the certificate for the address on which etcd listens."""
        self.authority.write_text(certificates.write("etcd", [address], self.certificate, self.key))

    def server_flags(self) -> Iterator[str]:
        """Yield the flags of an etcd that requires this certificate from clients and peers."""
        for whom in ("", "peer-"):
            yield f"--{whom}cert-file={self.certificate}"
            yield f"--{whom}key-file={self.key}"
            yield f"--{whom}trusted-ca-file={self.authority}"
            yield f"--{whom}client-cert-auth=true"

    def client_flags(self) -> tuple[str, ...]:
        """Return the API server's flags for connecting to etcd."""
        return (
            f"--etcd-cafile={self.authority}",
            f"--etcd-certfile={self.certificate}",
            f"--etcd-keyfile={self.key}",
        )
