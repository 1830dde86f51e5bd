"""Who kubelets and kube-proxy are to the API server, and who the API server is to kubelets."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from localcluster import access

PROXY = "system:kube-proxy"
CALLER = "kube-apiserver-kubelet-client"
DAYS = 365


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
        from kube.certificates import issuing  # slow to import, and mostly there are no kubelets
        from kube.certificates.components import Component

        now, whose = datetime.now(timezone.utc), Component("kubelets", timedelta(days=DAYS))
        authority = issuing.new_authority(whose, now)
        pair = issuing.new_serving(authority, [CALLER], whose, now)
        access.write_secret(self.key, pair.key)
        self.certificate.write_text(pair.certificate)
        self.authority.write_text(authority.certificate)

    def flags(self) -> tuple[str, ...]:
        """Give the flags of an API server that asks kubelets and pods, and lets kubelets do what is theirs."""
        return (
            "--authorization-mode=Node,RBAC",
            f"--kubelet-client-certificate={self.certificate}",
            f"--kubelet-client-key={self.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-aggregator-routing=true",  # webhooks are asked in their pods: this machine has no kube-proxy
        )
