"""Telling people about nodes and maintenances in Kubernetes Events; what is told again is counted.

A maintenance is worth more than its announcement: an API error is logged, not raised.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

from functions.maintenance.subject import say
from kube.door.api import Api
from kube.door.cluster import Cluster
from kube.door.errors import ApiError, Conflict
from kube.maintenance import announcements
from kube.maintenance.objects import Maintenance, timestamp
from kube.paths import Object


def announce(node: str, reason: str, maintenance: Maintenance, cluster: Cluster) -> None:
    """Write `Node <n> status is now: <reason>` unless somebody (the kubelet does) has just said so (OSV-12)."""
    now = datetime.now(timezone.utc)
    message = f"Node {node} status is now: {reason}"
    try:
        told = cluster.list(announcements.EVENTS, fields=announcements.about(node, reason), version="0")["items"]
    except ApiError as error:
        _log(reason, error, maintenance)
        return
    if not announcements.told_since(told, timestamp(now)):
        _write([announcements.node_event(node, reason, message, maintenance, now)], maintenance, cluster)


def report(reason: str, maintenance: Maintenance, cluster: Cluster, detail: str = "") -> None:
    """Say at the maintenance and at its node what became of it; `reason` as in `announcements.TEXTS` (NMO-27)."""
    now = datetime.now(timezone.utc)
    _write(announcements.maintenance_events(reason, detail, maintenance, now), maintenance, cluster)


def tell(node: str, reason: str, message: str, maintenance: Maintenance, cluster: Cluster, *, kind: str) -> None:
    """Write an Event about the node; `kind` is Normal or Warning."""
    now = datetime.now(timezone.utc)
    _write([announcements.node_event(node, reason, message, maintenance, now, kind=kind)], maintenance, cluster)


def _write(events: list[Object], maintenance: Maintenance, cluster: Cluster) -> None:
    """Write them side by side."""

    async def together() -> None:
        await asyncio.gather(*(_told(cluster.api, event, maintenance) for event in events))

    cluster.run(together())


async def _told(api: Api, event: Object, maintenance: Maintenance) -> None:
    """Write one, or count it once more where it was told before (OSV-12)."""
    name = event["metadata"]["name"]
    try:
        try:
            await api.create(announcements.EVENTS, event)
        except Conflict:
            found = await api.list(announcements.EVENTS, fields=f"metadata.name={name}")
            for told in found["items"]:
                await api.patch(f"{announcements.EVENTS}/{name}", announcements.told_again(told, event))
    except ApiError as error:
        _log(event["reason"], error, maintenance)


def _log(reason: str, error: ApiError, maintenance: Maintenance) -> None:
    say(f"the Event {reason} could not be written: {error.message}", maintenance)
