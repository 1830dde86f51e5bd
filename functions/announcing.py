"""Telling people about a node in Kubernetes Events, once."""

from __future__ import annotations

from datetime import datetime, timezone

from functions.subject import say
from kube import announcements
from kube.cluster import Cluster
from kube.errors import ApiError, Conflict
from kube.maintenance import Maintenance, timestamp


def announce(node: str, reason: str, maintenance: Maintenance, cluster: Cluster) -> None:
    """Write `Node <n> status is now: <reason>` unless somebody (the kubelet does) has just said so (OSV-12).

    A maintenance is worth more than its announcement: an API error is logged, not raised.
    """
    now = datetime.now(timezone.utc)
    message = f"Node {node} status is now: {reason}"
    try:
        told = cluster.list(announcements.EVENTS, fields=announcements.about(node, reason), version="0")["items"]
        if not announcements.told_since(told, timestamp(now)):
            _write(announcements.node_event(node, reason, message, maintenance, now), cluster)
    except ApiError as error:
        say(f"the Event {reason} could not be written: {error.message}", maintenance)


def warn(node: str, reason: str, message: str, maintenance: Maintenance, cluster: Cluster) -> None:
    """Write a Warning Event about the node."""
    now = datetime.now(timezone.utc)
    _write(announcements.node_event(node, reason, message, maintenance, now, kind="Warning"), cluster)


def _write(event: dict[str, object], cluster: Cluster) -> None:
    try:
        cluster.create(announcements.EVENTS, event)
    except Conflict:
        return  # the same maintenance said the same in the same second
