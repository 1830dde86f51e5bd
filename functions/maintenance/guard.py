"""Guard nodes under maintenance: repair a removed cordon, taint or label; delete the maintenances of deleted nodes.

The event source selects only nodes with the maintenance label, so that other nodes cause no load (design rule 10). If a
node loses the label, the source emits a delete event. The function therefore reads the node to learn whether it exists.

In: an updated or deleted Node. Out: `node.drifted`.
Touches: nodemaintenances list, delete; nodes get; leases get in medik8s-leases;
events list, create, patch in default.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.http_binding import BadEvent
from functions.event_data import get_metadata, is_nonempty_string, require_data
from functions.event_recorder import EVENT_RECORDER
from functions.installs import is_active_install
from functions.maintenance.event_objects import build_step_failed, is_active, log_about
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.client.api import get_or_none
from kube.client.api_errors import ApiError, Conflict, NotFound
from kube.client.sync_client import SyncClient
from kube.kubernetes_events import KubernetesEvent
from kube.maintenance import objects as m
from kube.maintenance.blocked_pods import is_backing_off
from kube.maintenance.groups import GROUPS
from kube.maintenance.kubernetes_events import EVENTS_PATH, build_cordoned_again_event
from kube.maintenance.lookup import list_maintenances_of_holder_group, list_undeleted_maintenances
from kube.nodes import Node, build_node_path, get_maintenance_uid, is_cordoned_and_tainted, is_in_maintenance
from kube.paths import MALFORMED_OBJECT_ERRORS, Object


def _parse_node_name(event: BaseCloudEvent) -> str:
    """Return the name of the Node in the event's data. Raises `BadEvent` if the name is missing."""
    name = get_metadata(event).get("name")
    if not is_nonempty_string(name):
        raise BadEvent("metadata.name of the Node is missing in data")
    return str(name)


@step(
    "guard",
    consumes=(events.RESOURCE_UPDATED, events.RESOURCE_DELETED),
    emits=(events.NODE_DRIFTED,),
    kind="Node",
    on_failure=build_step_failed,
    coalescing=HintPolicy(lambda event: WorkKey(f"node {_parse_node_name(event)}")),
)
def guard(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Return `node.drifted` for a node that needs repair, and delete the maintenances of a deleted node.

    The function does not change a node that an administrator cordoned without a maintenance (DRN-6).
    """
    node_data, name = require_data(event), _parse_node_name(event)
    is_node_deleted = event.get_type() == events.RESOURCE_DELETED
    is_intact, holder = _parse_node_state(node_data)
    if not is_node_deleted and is_intact:
        return []  # The node is still cordoned, tainted and labelled, so no read is necessary.
    if not is_active_install(client):
        return []
    # After a delete event, read the newest state: usually `restore` removed the label, and a cached list may be older.
    api = client.api
    maintenances = client.run(
        list_undeleted_maintenances(api, name)
        if is_node_deleted
        else list_maintenances_of_holder_group(api, name, holder, resource_version="0")
    )
    begun = [item for item in maintenances if is_active(item, name)]
    if not any(is_node_deleted or m.is_reported_cordoned(item) for item in begun):
        return []  # `cordon` or `taint` has not finished yet, because no status reports the cordon.
    node = client.run(get_or_none(client.api.get(build_node_path(name))))
    current = [item for item in begun if node and m.has_begun_on(item, node)]
    _delete_maintenances([item for item in begun if item not in current], client)
    return _report_drift(event, current, node, client) if node else []


def _parse_node_state(node_data: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether the event's Node is cordoned, tainted and labelled, and the maintenance uid in its label.

    Raises `BadEvent` if the Node is malformed.
    """
    if not isinstance(node_data.get("spec"), dict):
        raise BadEvent("spec of the Node is missing in data")
    try:
        is_intact = any(is_in_maintenance(node_data, group.drain_taint) for group in GROUPS.values())
        return is_intact, str(get_maintenance_uid(node_data) or "")
    except MALFORMED_OBJECT_ERRORS:
        raise BadEvent("the Node in data is malformed") from None


def _delete_maintenances(maintenances: list[Object], client: SyncClient) -> None:
    """Delete the maintenances of a deleted node (NMO-20), even if the node was recreated with the same name."""
    for maintenance in maintenances:
        log_about("the node was deleted: deleting its NodeMaintenance", maintenance)
        try:
            client.delete(m.build_path(maintenance), uid=maintenance["metadata"]["uid"])
        except (NotFound, Conflict):
            continue  # The garbage collector has already deleted the maintenance.


def _report_drift(
    event: BaseCloudEvent, maintenances: list[Object], node: Node, client: SyncClient
) -> list[BaseCloudEvent]:
    """Return `node.drifted` for each maintenance whose cordon, taint or label another client has removed.

    The function skips a maintenance that is in backoff, or whose Kubernetes Event, which counts the repairs, cannot be
    written. Otherwise the function and the other client would undo each other's writes endlessly (rule 9). `resync`
    repairs the node of a skipped maintenance later.
    """
    name, now = node["metadata"]["name"], datetime.now(timezone.utc)
    replies: list[BaseCloudEvent] = []
    for item in maintenances:
        if not m.is_reported_cordoned(item) or is_in_maintenance(node, m.get_group(item).drain_taint):
            continue
        kubernetes_event = build_cordoned_again_event(item, _describe_drift(item, node))
        if is_backing_off(_find_repair_event(kubernetes_event, item, client), now):
            continue
        if not client.run(EVENT_RECORDER.record(client.api, [kubernetes_event])):
            continue
        message, reference = kubernetes_event.message, events.ObjectReference.from_object(item)
        log_about(message, item)
        replies.append(
            events.build_event(events.NODE_DRIFTED, "guard", reference, name, cause=event, data={"message": message})
        )
    return replies


def _find_repair_event(kubernetes_event: KubernetesEvent, maintenance: Object, client: SyncClient) -> Object | None:
    """Return the Kubernetes Event that counts the node's repairs; None if it does not exist or cannot be read."""
    try:
        items = client.list(EVENTS_PATH, field_selector=f"metadata.name={kubernetes_event.event_name}")["items"]
    except ApiError as error:
        log_about(f"cannot read Event {kubernetes_event.reason}: {error.message}", maintenance)
        return None
    return items[0] if items else None


def _describe_drift(maintenance: Object, node: Node) -> str:
    """Return how another client changed the node, for an error message: unlabelled, or uncordoned or untainted."""
    drain_taint = m.get_group(maintenance).drain_taint
    return "unlabelled" if is_cordoned_and_tainted(node, drain_taint) else "uncordoned or untainted"
