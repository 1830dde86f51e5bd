"""Builds the Kubernetes Events about certificate Secrets that `kubectl describe secret` shows."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from kube import kubernetes_events
from kube.paths import Object

UNKNOWN_COMPONENT_REASON, NO_NAMES_REASON, CERT_MANAGER_REASON, NOT_RENEWED_REASON = (
    *("UnknownCertificateComponent", "CertificateWithoutNames", "CertificateOfCertManager", "CertificateNotRenewed"),
)
RENEWED_REASON = "RenewedCertificate"


class EventNotice(NamedTuple):
    """An Event to record: kind and name of its object, reason, and message."""

    target: tuple[str, str]
    reason: str
    message: str


def build_event(namespace: str, notice: EventNotice, now: datetime) -> Object:
    """Build the Event; its name is derived from its content, so identical notices give the same Event."""
    kind, name = notice.target
    involved = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": namespace}
    event_name = kubernetes_events.build_event_name(name, kind, notice.reason, notice.message)
    event_type = kubernetes_events.NORMAL_TYPE if notice.reason == RENEWED_REASON else kubernetes_events.WARNING_TYPE
    return kubernetes_events.build_event(
        event_name, namespace, involved, event_type, notice.reason, notice.message, now
    )
