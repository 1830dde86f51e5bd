"""Records Kubernetes Events about nodes and maintenances; recording an existing Event again increments its count.

API errors are logged, not raised, since a failed Event must not fail the maintenance.
"""

from __future__ import annotations

from datetime import datetime, timezone

from functions.maintenance.event_objects import log_about
from kube.client.api import Api
from kube.client.api_errors import ApiError, Conflict
from kube.client.sync_client import Cluster
from kube.maintenance import kubernetes_events
from kube.maintenance.objects import Maintenance
from kube.paths import Object


def announce_progress(reason: str, maintenance: Maintenance, cluster: Cluster, detail: str = "") -> None:
    """Record an Event on the maintenance and on its node; `reason` is a key of `announcements.TEXTS` (NMO-27)."""
    now = datetime.now(timezone.utc)
    _write(kubernetes_events.maintenance_events(reason, detail, maintenance, now), maintenance, cluster)


def announce_on_node(
    node: str, reason: str, message: str, maintenance: Maintenance, cluster: Cluster, *, kind: str
) -> bool:
    """Record an Event on the node and return whether it was written; `kind` is Normal or Warning."""
    now = datetime.now(timezone.utc)
    return _write([kubernetes_events.node_event(node, reason, message, maintenance, now, kind=kind)], maintenance, cluster)


def announced(node: str, reason: str, maintenance: Maintenance, cluster: Cluster) -> Object | None:
    """Return the Event that this maintenance recorded on the node for `reason`; None if it cannot be read."""
    try:
        found = cluster.list(kubernetes_events.EVENTS, fields=kubernetes_events.this_one(node, reason, maintenance))["items"]
    except ApiError as error:
        _log(reason, error, maintenance)
        return None
    return found[0] if found else None


def _write(events: list[Object], maintenance: Maintenance, cluster: Cluster) -> bool:
    """Write the Events concurrently, and return whether all were written."""
    return all(cluster.together(*(_create_or_count(cluster.api, event, maintenance) for event in events)))


async def _create_or_count(api: Api, event: Object, maintenance: Maintenance) -> bool:
    """Create the Event, or increment the count of an existing one (OSV-12); return whether it was written."""
    path = f"{kubernetes_events.EVENTS}/{event['metadata']['name']}"
    try:
        try:
            await api.create(kubernetes_events.EVENTS, event)
        except Conflict:
            known = await api.list(kubernetes_events.EVENTS, fields=f"metadata.name={event['metadata']['name']}")
            for item in known["items"]:
                await api.patch(path, kubernetes_events.counted_again(item, event))
    except ApiError as error:
        _log(event["reason"], error, maintenance)
        return False
    return True


def _log(reason: str, error: ApiError, maintenance: Maintenance) -> None:
    log_about(f"the Event {reason} could not be written: {error.message}", maintenance)
