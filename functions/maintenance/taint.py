"""Add the API group's drain taint and the unschedulable taint to the node; keep other taints (NMO-4, KNM-4, DRN-13).

In: `node.cordoned`. Out: `node.tainted`, or `maintenance.restore_pending` if the maintenance has ended.
Touches: nodemaintenances get; nodes get, patch.
"""

from __future__ import annotations

import json

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.maintenance.cordon_and_taint import (
    build_restore_pending,
    copy_again_flag,
    is_patch_of_inactive_maintenance,
    patch_node_of_active_maintenance,
)
from functions.maintenance.event_objects import build_step_failed, log_about, parse_reference
from functions.steps import step
from kube.client.sync_client import SyncClient
from kube.maintenance.objects import Maintenance, get_group
from kube.nodes import Node, build_taint_patch, select_taints_to_log
from kube.paths import Object


@step(
    "taint",
    consumes=(events.NODE_CORDONED,),
    emits=(events.NODE_TAINTED, events.MAINTENANCE_RESTORE_PENDING),
    on_failure=build_step_failed,
)
def taint(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Add the missing maintenance taints to the node. Raises `Failed` if the node no longer exists."""
    result = patch_node_of_active_maintenance(event, client, _build_patch)
    if result is None or is_patch_of_inactive_maintenance(event, result, client):
        return build_restore_pending("taint", event, client)
    if result.is_patched:
        _log_taints(result.maintenance, result.node_before)
    name, reference = result.node_before["metadata"]["name"], parse_reference(event)
    return [events.build_event(events.NODE_TAINTED, "taint", reference, name, cause=event, data=copy_again_flag(event))]


def _build_patch(maintenance: Maintenance, node: Node) -> list[Object]:
    return build_taint_patch(node, get_group(maintenance).drain_taint, maintenance["metadata"]["uid"])


def _log_taints(maintenance: Maintenance, node: Node) -> None:
    """Log the taints that were added; `node` is the node before the write."""
    name, key = node["metadata"]["name"], get_group(maintenance).drain_taint
    log_about(f"Maintenance taints will be added to node {name}", maintenance)
    added = json.dumps(select_taints_to_log(node, key), separators=(",", ":"))
    log_about(f"Taints: {added} will be added to node {name}", maintenance)
    log_about(f"Applying {key} taint add on Node: {name}", maintenance)
    log_about(f"Patching taints on Node: {name}", maintenance)
