"""Check a MutexTarget: whether its MachineConfigPools exist, and which nodes belong to them (MUT-20..22).

In: an added, updated or deleted MutexTarget, `target.check_pending`. Out: `target.checked`.
Touches: mutextargets get; mutextargets/status patch; machineconfigpools list; nodes list.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.event_objects import (
    Replies,
    is_about_kind,
    is_update_after_validation,
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
    """Report the MutexTarget's nodes and validity in its status; ignore the update event that this write causes."""
    if not is_about_kind(event, TARGET_KIND) or is_update_after_validation(event):
        return []
    target, api = read_object(event, client, TARGET_KIND), client.api
    if target is None or is_deleting(target):
        has_changed = event.get_type() == events.RESOURCE_DELETED
    else:
        pools, nodes = client.gather_all(lookup.list_pools_by_name(api), lookup.list_nodes_by_name(api))
        state = compute_target_state(target, pools, nodes.values())
        has_changed = write_status(target, client, {"nodes": state.node_names}, state.conditions) is not None
    reference = parse_reference(event, TARGET_KIND)
    return [events.build_event(events.TARGET_CHECKED, "check-target", reference, cause=event)] if has_changed else []
