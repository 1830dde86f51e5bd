"""Patches a node for `cordon` and `taint`, and checks afterwards that its maintenance is still active (design rule 12).

A maintenance may be deleted, and its node restored, while the patch is in flight. After a patch that labels the node,
the maintenance is therefore read again. After `cordon`, the first read of `taint` is this check. If the check is lost,
`resync` finds the node by its label. A patch of a labelled node requires that the label is still present, so the API
server rejects the patch if the node has been restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import require_data
from functions.maintenance.event_objects import (
    fetch_active_maintenance,
    is_active,
    parse_node_name,
    parse_reference,
    read_maintenance,
)
from functions.node_patching import patch_node
from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient
from kube.maintenance.objects import Maintenance
from kube.nodes import Node, build_node_path, is_labelled_with_maintenance
from kube.paths import Object

PatchBuilder = Callable[[Maintenance, Node], list[Object]]
"""Function that returns the JSON patch for the node of a maintenance, or [] if the node needs no change."""


@dataclass(frozen=True)
class NodePatchResult:
    """An active maintenance, its node before the patch, and whether the node needed a patch."""

    maintenance: Maintenance
    node_before: Node
    is_patched: bool


def patch_node_of_active_maintenance(
    event: BaseCloudEvent, client: SyncClient, build_patch: PatchBuilder
) -> NodePatchResult | None:
    """Patch the node of the event's maintenance with `build_patch`; return None if the maintenance is not active.

    Raises `Failed` if the node no longer exists, and `Retry` if other clients keep changing the node.
    """

    def read_and_build_patch() -> tuple[tuple[Maintenance, Node] | None, list[Object]]:
        active = client.run(fetch_active_maintenance(event, client.api))
        return active, build_patch(*active) if active else []

    active, is_patched = patch_node(parse_node_name(event), read_and_build_patch, client)
    return NodePatchResult(*active, is_patched) if active else None


def is_patch_of_inactive_maintenance(event: BaseCloudEvent, result: NodePatchResult, client: SyncClient) -> bool:
    """Return whether the patch labelled a node whose maintenance is no longer active."""
    if not result.is_patched or is_labelled_with_maintenance(result.node_before, parse_reference(event).uid):
        return False
    maintenance = read_maintenance(event, client)
    return maintenance is None or not is_active(maintenance, parse_node_name(event))


def build_restore_pending(step: str, event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Return `maintenance.restore_pending` if the node has the label of the event's maintenance, else an empty list.

    The caller has already determined that this maintenance is not active.
    """
    reference, name = parse_reference(event), parse_node_name(event)
    node = client.run(get_or_none(client.api.get(build_node_path(name))))
    if not is_labelled_with_maintenance(node, reference.uid):
        return []
    return [events.build_event(events.MAINTENANCE_RESTORE_PENDING, step, reference, name, cause=event)]


def copy_again_flag(event: BaseCloudEvent) -> Object:
    """Return the event's `again` flag as data for the event that this step emits.

    `evict` sets the flag when it requests the repair of a drifted node. If the node then drifts a second time, `evict`
    fails instead of requesting another repair.
    """
    return {"again": True} if require_data(event).get("again") else {}
