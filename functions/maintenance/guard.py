"""Guard nodes under maintenance: repair what another client has undone, and delete the maintenances of deleted nodes.

The event source selects nodes by our label, so that all other nodes cost nothing (design rule 10). A node that lost the
label arrives as a deletion, so the function reads the node and does not rely on the event's type.

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
from functions.event_data import data_of, is_text, metadata_of
from functions.pass_strategies import LookingForChanges
from functions.installs import acts
from functions.maintenance.kubernetes_events import announce_on_node, announced
from functions.maintenance.event_objects import is_active, log_about
from kube.client.api import absent_ok
from kube.client.api_errors import Conflict, NotFound
from kube.client.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.eviction_backoff import is_resting
from kube.maintenance.groups import GROUPS
from kube.maintenance.lookup import of_holder, undeleted
from kube.nodes import Node, in_maintenance, is_closed, labelled_for, node_path
from kube.paths import MALFORMED, Object

CONSUMES = (events.RESOURCE_UPDATED, events.RESOURCE_DELETED)
EMITS = (events.NODE_DRIFTED,)
AGAIN = "NodeCordonedAgain"


def _name_in(event: BaseCloudEvent) -> str:
    """Return the name of the Node that the event carries. Raises `BadEvent` if it has none."""
    name = metadata_of(event).get("name")
    if not is_text(name):
        raise BadEvent("metadata.name of the Node is missing in data")
    return str(name)


LOOKING = LookingForChanges(lambda event: f"node {_name_in(event)}")


def guard(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Return `node.drifted` for a node that needs repair, and delete the maintenances of a deleted node.

    A cordon that no maintenance requested is left alone (DRN-6).
    """
    hint, name = data_of(event), _name_in(event)
    deleted = event.get_type() == events.RESOURCE_DELETED
    closed, holder = _shown(hint)
    if not deleted and closed:
        return []  # still cordoned, tainted and labelled: no read is necessary
    if not acts(cluster):
        return []
    # usually `restore` has just removed the label: a cached list may still contain the maintenance
    api = cluster.api
    found = cluster.run(undeleted(api, name) if deleted else of_holder(api, name, holder, version="0"))
    begun = [item for item in found if is_active(item, name)]
    if not any(deleted or m.is_cordoned(item) for item in begun):
        return []  # the first cordon is done and the taint is pending
    node = cluster.run(absent_ok(cluster.api.get(node_path(name))))
    there = [item for item in begun if node and m.began_on(item, node)]
    _end([item for item in begun if item not in there], cluster)
    return _drifted(event, there, node, cluster) if node else []


def _shown(hint: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether the event's Node is cordoned, tainted and labelled, and the maintenance's uid in the label.

    Raises `BadEvent` if the Node is malformed.
    """
    if not isinstance(hint.get("spec"), dict):
        raise BadEvent("spec of the Node is missing in data")
    try:
        closed = any(in_maintenance(hint, group.drain_taint) for group in GROUPS.values())
        return closed, str(labelled_for(hint) or "")
    except MALFORMED:
        raise BadEvent("the Node in data is malformed") from None


def _end(begun: list[Object], cluster: Cluster) -> None:
    """Delete the maintenances of a deleted node (NMO-20), also if a new node has the same name."""
    for item in begun:
        log_about("the node was deleted: ending its maintenance", item)
        try:
            cluster.delete(m.path(item), uid=item["metadata"]["uid"])
        except (NotFound, Conflict):
            continue  # the garbage collector was faster


def _drifted(event: BaseCloudEvent, begun: list[Object], node: Node, cluster: Cluster) -> list[BaseCloudEvent]:
    """Return a `node.drifted` for each maintenance whose cordon, taint or label another client has removed.

    The function skips a maintenance that is in backoff, or whose repair cannot be counted by a Kubernetes Event.
    Otherwise it and the other client would undo each other's writes endlessly (rule 9). The tick repairs the node
    later.
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
    """Describe what another client did to the node, for a message."""
    return "unlabelled" if is_closed(node, m.group(item).drain_taint) else "uncordoned or untainted"
