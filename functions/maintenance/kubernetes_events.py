"""Records Kubernetes Events about nodes and maintenances; recording the same Event again increments its count.

API errors are logged, not raised, since a failed Event must not fail the maintenance.
"""

from __future__ import annotations

from datetime import datetime, timezone

from functions.maintenance.event_objects import log_about
from kube.client.api import Api
from kube.client.api_errors import ApiError, Conflict
from kube.client.sync_client import SyncClient
from kube.maintenance import kubernetes_events
from kube.maintenance.objects import Maintenance
from kube.paths import Object


def record_progress(reason: str, maintenance: Maintenance, client: SyncClient, detail: str = "") -> None:
    """Record an Event on the maintenance and on its node; `reason` is a key of `EVENT_MESSAGES` (NMO-27)."""
    now = datetime.now(timezone.utc)
    _record_events(kubernetes_events.build_maintenance_events(reason, detail, maintenance, now), maintenance, client)


def record_node_event(
    node: str, reason: str, message: str, maintenance: Maintenance, client: SyncClient, *, event_type: str
) -> bool:
    """Record an Event on the node and return whether it was written; `event_type` is Normal or Warning."""
    now = datetime.now(timezone.utc)
    return _record_events(
        [kubernetes_events.build_node_event(node, reason, message, maintenance, now, event_type=event_type)],
        maintenance,
        client,
    )


def find_node_event(node: str, reason: str, maintenance: Maintenance, client: SyncClient) -> Object | None:
    """Return the Event that this maintenance recorded on the node for `reason`; None if no such Event can be read."""
    try:
        items = client.list(
            kubernetes_events.EVENTS_PATH,
            field_selector=kubernetes_events.build_event_selector(node, reason, maintenance),
        )["items"]
    except ApiError as error:
        _log_error(reason, error, maintenance)
        return None
    return items[0] if items else None


def _record_events(events: list[Object], maintenance: Maintenance, client: SyncClient) -> bool:
    """Write the Events concurrently, and return whether all were written."""
    return all(client.gather_all(*(_create_or_increment(client.api, event, maintenance) for event in events)))


async def _create_or_increment(api: Api, event: Object, maintenance: Maintenance) -> bool:
    """Create the Event, or increment the count of an existing one (OSV-12); return whether it was written."""
    path = f"{kubernetes_events.EVENTS_PATH}/{event['metadata']['name']}"
    try:
        try:
            await api.create(kubernetes_events.EVENTS_PATH, event)
        except Conflict:
            existing = await api.list(
                kubernetes_events.EVENTS_PATH, field_selector=f"metadata.name={event['metadata']['name']}"
            )
            for item in existing["items"]:
                await api.patch(path, kubernetes_events.build_increment_patch(item, event))
    except ApiError as error:
        _log_error(event["reason"], error, maintenance)
        return False
    return True


def _log_error(reason: str, error: ApiError, maintenance: Maintenance) -> None:
    log_about(f"cannot record Event {reason}: {error.message}", maintenance)
