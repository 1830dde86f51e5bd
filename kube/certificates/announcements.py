"""Kubernetes Events about the Secrets of certificates, as `kubectl describe secret` finds them. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import NamedTuple

from kube.certificates.components import timestamp
from kube.paths import Object, segment
from kube.words import shortened

LONGEST_NAME, LONGEST_MESSAGE = 236, 900
"""Characters of the Secret's name in that of its Event, which has 253; and of the message, for which 1024 is usual."""
UNKNOWN, NAMELESS, FOREIGN, FAILED = (
    *("UnknownCertificateComponent", "CertificateWithoutNames", "CertificateOfCertManager", "CertificateNotRenewed"),
)
RENEWED = "RenewedCertificate"


class Notice(NamedTuple):
    """What is to be announced about an object: kind and name of it, a reason, and the message."""

    of: tuple[str, str]
    reason: str
    message: str


def events_path(namespace: str) -> str:
    """Path of the Events about Secrets of this namespace."""
    return f"/api/v1/namespaces/{segment(namespace)}/events"


def event(namespace: str, notice: Notice, now: datetime) -> Object:
    """The Event. Its name is made of what it says: announced again while it is there, it is the same one."""
    kind, name = notice.of
    moment = timestamp(now)
    digest = hashlib.sha256("|".join((kind, notice.reason, notice.message)).encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name[:LONGEST_NAME].rstrip('-.')}.{digest}", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": kind, "name": name, "namespace": namespace},
        "type": "Normal" if notice.reason == RENEWED else "Warning",
        "reason": notice.reason,
        "message": shortened(notice.message, LONGEST_MESSAGE),
        "source": {"component": "node-maintenance"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
