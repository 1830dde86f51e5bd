"""Cordon the node, so that no new pods are scheduled to it, and label it as under maintenance (NMO-3, design rule 10).

In: `maintenance.begun`, `node.drifted`.
Out: `node.cordoned`, or `maintenance.restore_pending` if the maintenance has ended.
Touches: nodemaintenances get; nodes get, patch.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.maintenance.cordon_and_taint import (
    build_restore_pending,
    copy_again_flag,
    patch_node_of_active_maintenance,
)
from functions.maintenance.event_objects import build_step_failed, log_about, parse_reference
from functions.steps import step
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.objects import Maintenance, get_group
from kube.nodes import Node, build_cordon_patch, is_cordoned
from kube.paths import Object


@step(
    "cordon",
    consumes=(events.MAINTENANCE_BEGUN, events.NODE_DRIFTED),
    emits=(events.NODE_CORDONED, events.MAINTENANCE_RESTORE_PENDING),
    on_failure=build_step_failed,
)
def cordon(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Set the node's `spec.unschedulable` and maintenance label. Raises `Failed` if the node no longer exists."""
    result = patch_node_of_active_maintenance(event, client, _build_patch)
    if result is None:
        return build_restore_pending("cordon", event, client)
    name, reference = result.node_before["metadata"]["name"], parse_reference(event)
    if result.is_patched and not is_cordoned(result.node_before):
        log_about(f"cordon Node: {name}", result.maintenance)
    return [
        events.build_event(events.NODE_CORDONED, "cordon", reference, name, cause=event, data=copy_again_flag(event))
    ]


def _build_patch(maintenance: Maintenance, node: Node) -> list[Object]:
    other_drain_taints = DRAIN_TAINTS - {get_group(maintenance).drain_taint}
    return build_cordon_patch(node, maintenance["metadata"]["uid"], other_drain_taints)
