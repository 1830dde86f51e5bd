"""Patches a node for `cordon` and `taint`, and checks afterwards that its maintenance is still active (design rule 12).

A maintenance may be deleted, and its node restored, while the write is in flight. So the steps read the maintenance
again after a write that adds the label to the node. After `cordon`, the first read of `taint` serves as this check. If
the check is missed, the tick finds the node by its label. A write to a node that already has the label requires that
the label is still there, so the API server rejects it after the node was restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import data_of
from functions.maintenance.event_objects import is_active, node_of, read_active, read_maintenance, reference_of
from functions.node_patching import patch_node
from kube.client.api import absent_ok
from kube.client.sync_client import Cluster
from kube.maintenance.objects import Maintenance
from kube.nodes import Node, is_labelled_for, node_path
from kube.paths import Object

Decide = Callable[[Maintenance, Node], list[Object]]
"""Returns the patch that a node needs for a maintenance, [] if none."""


@dataclass(frozen=True)
class Closed:
    """An active maintenance, its node as it was before the write, and whether a write was necessary."""

    maintenance: Maintenance
    node: Node
    changed: bool


def close(event: BaseCloudEvent, cluster: Cluster, decide: Decide) -> Closed | None:
    """Send the patch that `decide` returns for the event's maintenance; return None if that is not active.

    Raises `Failed` if the node no longer exists, `Retry` if other clients keep changing it.
    """

    def look() -> tuple[tuple[Maintenance, Node] | None, list[Object]]:
        found = read_active(event, cluster)
        return found, decide(*found) if found else []

    found, changed = patch_node(node_of(event), look, cluster)
    return Closed(*found, changed) if found else None


def came_late(event: BaseCloudEvent, closed: Closed, cluster: Cluster) -> bool:
    """Return whether the write added the label to a node whose maintenance is not active any more."""
    if not closed.changed or is_labelled_for(closed.node, reference_of(event).uid):
        return False
    again = read_maintenance(event, cluster)
    return again is None or not is_active(again, node_of(event))


def given_up(step: str, event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Return `maintenance.ended` if the node is labelled for the event's maintenance, else nothing.

    The caller has found that this maintenance is not active.
    """
    reference, name = reference_of(event), node_of(event)
    node = cluster.run(absent_ok(cluster.api.get(node_path(name))))
    if not is_labelled_for(node, reference.uid):
        return []
    return [events.event(events.MAINTENANCE_ENDED, step, reference, name, cause=event)]


def again(event: BaseCloudEvent) -> Object:
    """Return the event's `again` flag as data for the next event of the chain.

    `evict` sets the flag if it finds the node schedulable, and fails if that happens again, so that the chain ends.
    """
    return {"again": True} if data_of(event).get("again") else {}
