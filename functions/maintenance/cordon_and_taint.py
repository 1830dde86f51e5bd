"""Closes a node for a maintenance, which `cordon` and `taint` do: written, and looked at again (design rule 12).

A maintenance may be deleted while the write is on its way, and its node be given back before the write arrives. So the
maintenance is read again after a write that puts the label on the node: behind `cordon` the first look of `taint` does
that, at once. The label is also what the tick finds where this look was missed. A write on a node that has the label
already demands that it still has it, so the server refuses it when it comes late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.data import data_of
from functions.maintenance.subject import is_active, node_of, read_active, read_maintenance, reference_of
from functions.patching import patch_node
from kube.door.api import absent_ok
from kube.door.sync_client import Cluster
from kube.maintenance.objects import Maintenance
from kube.nodes import Node, is_labelled_for, node_path
from kube.paths import Object

Decide = Callable[[Maintenance, Node], list[Object]]
"""The patch that a node needs for a maintenance, [] when none."""


@dataclass(frozen=True)
class Closed:
    """A node of an active maintenance, as it was before, and whether it had to be written."""

    maintenance: Maintenance
    node: Node
    changed: bool


def close(event: BaseCloudEvent, cluster: Cluster, decide: Decide) -> Closed | None:
    """Send the patch that `decide` makes for the event's maintenance; None when that is not active.

    Raises `Failed` when the node is gone, `Retry` when others keep writing it.
    """

    def look() -> tuple[tuple[Maintenance, Node] | None, list[Object]]:
        found = read_active(event, cluster)
        return found, decide(*found) if found else []

    found, changed = patch_node(node_of(event), look, cluster)
    return Closed(*found, changed) if found else None


def came_late(event: BaseCloudEvent, closed: Closed, cluster: Cluster) -> bool:
    """Whether the write has put the label on a node whose maintenance is not active any more."""
    if not closed.changed or is_labelled_for(closed.node, reference_of(event).uid):
        return False
    again = read_maintenance(event, cluster)
    return again is None or not is_active(again, node_of(event))


def given_up(step: str, event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """`maintenance.ended` when the node is labelled for the event's maintenance, which is not active; else nothing."""
    reference, name = reference_of(event), node_of(event)
    node = cluster.run(absent_ok(cluster.api.get(node_path(name))))
    if not is_labelled_for(node, reference.uid):
        return []
    return [events.event(events.MAINTENANCE_ENDED, step, reference, name, cause=event)]


def again(event: BaseCloudEvent) -> Object:
    """Data that goes on with the chain: `evict` has found the node open once, and does not have it closed for ever."""
    return {"again": True} if data_of(event).get("again") else {}
