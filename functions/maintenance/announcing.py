"""Writes Kubernetes Events about nodes and maintenances; an Event that is there already is counted.

A maintenance is worth more than its announcement: an API error is logged, not raised.
"""

from __future__ import annotations

from datetime import datetime, timezone

from functions.maintenance.subject import log_about
from kube.door.api import Api
from kube.door.api_errors import ApiError, Conflict
from kube.door.sync_client import Cluster
from kube.maintenance import announcements
from kube.maintenance.objects import Maintenance
from kube.paths import Object


def announce_progress(reason: str, maintenance: Maintenance, cluster: Cluster, detail: str = "") -> None:
    """Announce at the maintenance and at its node how it goes; `reason` as in `announcements.TEXTS` (NMO-27)."""
    now = datetime.now(timezone.utc)
    _write(announcements.maintenance_events(reason, detail, maintenance, now), maintenance, cluster)


def announce_on_node(
    node: str, reason: str, message: str, maintenance: Maintenance, cluster: Cluster, *, kind: str
) -> bool:
    """Write an Event about the node; `kind` is Normal or Warning. Whether it was written."""
    now = datetime.now(timezone.utc)
    return _write([announcements.node_event(node, reason, message, maintenance, now, kind=kind)], maintenance, cluster)


def announced(node: str, reason: str, maintenance: Maintenance, cluster: Cluster) -> Object | None:
    """The Event about the node that this maintenance announced with this reason; None when there is none to read."""
    try:
        found = cluster.list(announcements.EVENTS, fields=announcements.this_one(node, reason, maintenance))["items"]
    except ApiError as error:
        _log(reason, error, maintenance)
        return None
    return found[0] if found else None


def _write(events: list[Object], maintenance: Maintenance, cluster: Cluster) -> bool:
    """Write them side by side; whether all were written."""
    return all(cluster.together(*(_create_or_count(cluster.api, event, maintenance) for event in events)))


async def _create_or_count(api: Api, event: Object, maintenance: Maintenance) -> bool:
    """Write one, or count it once more where it is there already (OSV-12); whether it was written."""
    path = f"{announcements.EVENTS}/{event['metadata']['name']}"
    try:
        try:
            await api.create(announcements.EVENTS, event)
        except Conflict:
            known = await api.list(announcements.EVENTS, fields=f"metadata.name={event['metadata']['name']}")
            for item in known["items"]:
                await api.patch(path, announcements.counted_again(item, event))
    except ApiError as error:
        _log(event["reason"], error, maintenance)
        return False
    return True


def _log(reason: str, error: ApiError, maintenance: Maintenance) -> None:
    log_about(f"the Event {reason} could not be written: {error.message}", maintenance)
