"""Kubernetes Events about the Secrets of certificates, as `kubectl describe secret` finds them. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from kube import announcements
from kube.paths import Object

UNKNOWN, NAMELESS, FOREIGN, FAILED = (
    *("UnknownCertificateComponent", "CertificateWithoutNames", "CertificateOfCertManager", "CertificateNotRenewed"),
)
RENEWED = "RenewedCertificate"


class Notice(NamedTuple):
    """What is to be announced about an object: kind and name of it, a reason, and the message."""

    of: tuple[str, str]
    reason: str
    message: str


def event(namespace: str, notice: Notice, now: datetime) -> Object:
    """The Event. Its name is made of what it says: announced again while it is there, it is the same one."""
    kind, name = notice.of
    involved = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": namespace}
    of = announcements.event_name(name, kind, notice.reason, notice.message)
    severity = announcements.NORMAL if notice.reason == RENEWED else announcements.WARNING
    return announcements.event(of, namespace, involved, severity, notice.reason, notice.message, now)
