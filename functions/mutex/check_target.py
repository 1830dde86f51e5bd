"""Check a MutexTarget: whether its pools exist, and which nodes belong to them (MUT-20..22).

In: an added, updated or deleted MutexTarget, `target.check_pending`. Out: `target.checked`.
Touches: mutextargets get; mutextargets/status patch; machineconfigpools list; nodes list.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import get_metadata
from functions.mutex.event_objects import (
    Replies,
    is_about_kind,
    log_failure,
    parse_reference,
    read_object,
    write_status,
)
from functions.steps import step
from kube.client.sync_client import SyncClient
from kube.mutex import lookup
from kube.mutex.objects import TARGET_KIND, is_deleting
from kube.mutex.validation import compute_target_state


@step(
    "check-target",
    consumes=(events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED, events.TARGET_CHECK_PENDING),
    emits=(events.TARGET_CHECKED,),
    on_failure=log_failure,
)
def check_target(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Write to the status which nodes the target has and whether it is valid.

    The write causes an update event, which the step ignores.
    """
    if not is_about_kind(event, TARGET_KIND):
        return []
    reference = parse_reference(event, TARGET_KIND)
    target = read_object(event, client, TARGET_KIND)
    if target is None or is_deleting(target):
        is_deleted_event = event.get_type() == events.RESOURCE_DELETED
        return (
            [events.build_event(events.TARGET_CHECKED, "check-target", reference, cause=event)]
            if is_deleted_event
            else []
        )
    if event.get_type() == events.RESOURCE_UPDATED and _is_status_only_update(event, target["metadata"]["generation"]):
        return []
    pools, nodes = client.gather_all(lookup.list_pools_by_name(client.api), lookup.list_nodes_by_name(client.api))
    state = compute_target_state(target, pools, nodes.values())
    if not write_status(target, client, {"nodes": state.node_names}, state.conditions):
        return []
    return [events.build_event(events.TARGET_CHECKED, "check-target", reference, cause=event)]


def _is_status_only_update(event: BaseCloudEvent, generation: int) -> bool:
    """Return whether only the status was updated: all conditions already describe the current generation."""
    data = event.get_data()
    status = data.get("status") if isinstance(data, dict) else None
    conditions = status.get("conditions") if isinstance(status, dict) else None
    items = conditions if isinstance(conditions, list) else []
    generations = [item.get("observedGeneration") for item in items if isinstance(item, dict)]
    return (
        bool(generations)
        and all(observed == generation for observed in generations)
        and get_metadata(event).get("generation") == generation
    )
