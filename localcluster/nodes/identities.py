"""Who kubelets and kube-proxy are to the API server, and who the API server is to kubelets and to etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from localcluster import access, certificates

PROXY = "system:kube-proxy"
CALLER = "kube-apiserver-kubelet-client"


def name(number: int) -> str:
    """Give the name of a real node."""
    return f"real-{number}"


def kubelet(number: int) -> str:
    """Give the user name of its kubelet."""
    return f"system:node:{name(number)}"


def users(count: int) -> dict[str, tuple[str, ...]]:
    """Give the users of so many nodes, with their groups."""
    if not count:
        return {}
    kubelets = {kubelet(number): ("system:nodes", access.AUTHENTICATED) for number in range(1, count + 1)}
    return {PROXY: (access.AUTHENTICATED,), **kubelets}


class Caller:
    """The certificate by which kubelets know the API server, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.certificate, self.key = (
            folder / f"kubelet-client{ending}" for ending in ("-ca.crt", ".crt", ".key")
        )

    def write(self) -> None:
        """Issue it."""
        self.authority.write_text(certificates.write("kubelets", [CALLER], self.certificate, self.key))

    def flags(self) -> tuple[str, ...]:
        """Give the flags of an API server that asks kubelets and pods, and lets kubelets do what is theirs."""
        return (
            "--authorization-mode=Node,RBAC",
            f"--kubelet-client-certificate={self.certificate}",
            f"--kubelet-client-key={self.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-aggregator-routing=true",  # webhooks are asked in their pods: this machine has no kube-proxy
        )


class Etcd:
    """The certificate by which etcd and the API server know each other, in a folder.

    Kubelets of root do what is written there, so that nobody else on this machine may write it.
    """

    def __init__(self, folder: Path) -> None:
        self.authority, self.certificate, self.key = (
            folder / f"etcd{ending}" for ending in ("-ca.crt", ".crt", ".key")
        )

    def write(self, address: str) -> None:
        """Issue it for the address where etcd listens."""
        self.authority.write_text(certificates.write("etcd", [address], self.certificate, self.key))

    def server_flags(self) -> Iterator[str]:
        """Give the flags of an etcd that answers nobody else, neither clients nor members."""
        for whom in ("", "peer-"):
            yield f"--{whom}cert-file={self.certificate}"
            yield f"--{whom}key-file={self.key}"
            yield f"--{whom}trusted-ca-file={self.authority}"
            yield f"--{whom}client-cert-auth=true"

    def client_flags(self) -> tuple[str, ...]:
        """Give the flags of its API server."""
        return (
            f"--etcd-cafile={self.authority}",
            f"--etcd-certfile={self.certificate}",
            f"--etcd-keyfile={self.key}",
        )
