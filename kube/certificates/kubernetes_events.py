"""Builds the Kubernetes Events about certificate Secrets that `kubectl describe secret` shows."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from kube import kubernetes_events
from kube.paths import Object

UNKNOWN, NAMELESS, FOREIGN, FAILED = (
    *("UnknownCertificateComponent", "CertificateWithoutNames", "CertificateOfCertManager", "CertificateNotRenewed"),
)
RENEWED = "RenewedCertificate"


class Notice(NamedTuple):
    """An Event to record: kind and name of its object, reason, and message."""

    of: tuple[str, str]
    reason: str
    message: str


def event(namespace: str, notice: Notice, now: datetime) -> Object:
    """Build the Event; its name is derived from its content, so an identical notice has the same Event."""
    kind, name = notice.of
    involved = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": namespace}
    of = kubernetes_events.event_name(name, kind, notice.reason, notice.message)
    severity = kubernetes_events.NORMAL if notice.reason == RENEWED else kubernetes_events.WARNING
    return kubernetes_events.event(of, namespace, involved, severity, notice.reason, notice.message, now)
