"""Guard nodes under maintenance: what was undone by hand is done again; a node that is deleted ends its CRs.

The source selects nodes by our label, so that all others cost nothing (design rule 10). A node that lost the label
comes as deleted: what it is, the live node says, not the type of the event.

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
from eventing.wire import BadEvent
from functions.data import data_of, is_text, metadata_of
from functions.hints import LookingForChanges
from functions.installs import acts
from functions.maintenance.announcing import announce_on_node, announced
from functions.maintenance.subject import is_active, log_about
from kube.door.api import absent_ok
from kube.door.api_errors import Conflict, NotFound
from kube.door.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.eviction_pauses import is_resting
from kube.maintenance.groups import GROUPS
from kube.maintenance.lookup import of_holder, undeleted
from kube.nodes import Node, in_maintenance, is_closed, labelled_for, node_path
from kube.paths import MALFORMED, Object

CONSUMES = (events.RESOURCE_UPDATED, events.RESOURCE_DELETED)
EMITS = (events.NODE_DRIFTED,)
AGAIN = "NodeCordonedAgain"


def _name_in(event: BaseCloudEvent) -> str:
    """The name of the Node that the event carries. Raises `BadEvent` when it has none."""
    name = metadata_of(event).get("name")
    if not is_text(name):
        raise BadEvent("metadata.name of the Node is missing in data")
    return str(name)


LOOKING = LookingForChanges(lambda event: f"node {_name_in(event)}")


def guard(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Answer a Node's change with what its maintenances need; a cordon that none asked for is left alone (DRN-6)."""
    hint, name = data_of(event), _name_in(event)
    deleted = event.get_type() == events.RESOURCE_DELETED
    closed, holder = _shown(hint)
    if not deleted and closed:
        return []  # as it should be: the hint suffices
    if not acts(cluster):
        return []
    # `restore` has just taken the label off, as a rule: a cached list may still show what it was taken off for
    api = cluster.api
    found = cluster.run(undeleted(api, name) if deleted else of_holder(api, name, holder, version="0"))
    begun = [item for item in found if is_active(item, name)]
    if not any(deleted or m.is_cordoned(item) for item in begun):
        return []  # between the first cordon and its taint
    node = cluster.run(absent_ok(cluster.api.get(node_path(name))))
    there = [item for item in begun if node and m.began_on(item, node)]
    _end([item for item in begun if item not in there], cluster)
    return _drifted(event, there, node, cluster) if node else []


def _shown(hint: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the event's Node is as a maintenance wants it, and the uid of whose it is. Raises `BadEvent` for none."""
    if not isinstance(hint.get("spec"), dict):
        raise BadEvent("spec of the Node is missing in data")
    try:
        closed = any(in_maintenance(hint, group.drain_taint) for group in GROUPS.values())
        return closed, str(labelled_for(hint) or "")
    except MALFORMED:
        raise BadEvent("the Node in data is malformed") from None


def _end(begun: list[Object], cluster: Cluster) -> None:
    """Delete the maintenances of a node that is gone (NMO-20); a new node under the old name is none of theirs."""
    for item in begun:
        log_about("the node was deleted: ending its maintenance", item)
        try:
            cluster.delete(m.path(item), uid=item["metadata"]["uid"])
        except (NotFound, Conflict):
            continue  # the garbage collector was faster


def _drifted(event: BaseCloudEvent, begun: list[Object], node: Node, cluster: Cluster) -> list[BaseCloudEvent]:
    """One `node.drifted` for each maintenance whose cordon, taint or label was there and is gone.

    None where that was so a moment ago, or cannot be counted: whatever undoes it at once would be answered without end
    (rule 9). The tick does it again.
    """
    name, now = node["metadata"]["name"], datetime.now(timezone.utc)
    answers: list[BaseCloudEvent] = []
    for item in begun:
        if not m.is_cordoned(item) or in_maintenance(node, m.group(item).drain_taint):
            continue
        if is_resting(announced(name, AGAIN, item, cluster), now):
            continue
        message = f"node {name} was {_undone(item, node)} during maintenance {item['metadata']['name']}; cordoned again"
        if not announce_on_node(name, AGAIN, message, item, cluster, kind="Warning"):
            continue
        log_about(message, item)
        reference = events.Reference.of(item)
        answers.append(
            events.event(events.NODE_DRIFTED, "guard", reference, name, cause=event, data={"message": message})
        )
    return answers


def _undone(item: Object, node: Node) -> str:
    """What somebody did to the node, in words."""
    return "unlabelled" if is_closed(node, m.group(item).drain_taint) else "uncordoned or untainted"
