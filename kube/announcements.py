"""Kubernetes Events about nodes, as `kubectl describe node` finds them (OSV-12). Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from kube.api import Object
from kube.maintenance import Maintenance, timestamp

NAMESPACE = "default"
"""Events of cluster-scoped objects live here."""
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"


def about(node: str, reason: str) -> str:
    """Field selector for the Events with this reason about a node."""
    return f"involvedObject.kind=Node,involvedObject.name={node},reason={reason}"


def node_event(
    node: str, reason: str, message: str, maintenance: Maintenance, now: datetime, *, kind: str = "Normal"
) -> Object:
    """An Event about a node, named by maintenance, reason and second: told twice, kept once."""
    moment = timestamp(now)
    digest = hashlib.sha256(f"{maintenance['metadata']['uid']}|{reason}|{moment}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.{digest}", "namespace": NAMESPACE},
        # kubectl describe looks Events of nodes up by name in place of the uid, as kubelets write them
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": "node-maintenance"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def told_since(found: Iterable[Any], since: str) -> bool:
    """Whether one of the Events is not older than `since` (RFC 3339)."""
    return any((item.get("lastTimestamp") or item.get("eventTime") or "") >= since for item in found)
