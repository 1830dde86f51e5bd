"""Which NodeMaintenance an event speaks of, and whether it is still the same live object (X-2)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.events import Reference
from eventing.wire import BadEvent
from functions.failures import Failed
from kube.door.api import absent_ok
from kube.door.cluster import Cluster
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import Maintenance, has_begun, is_deleting, node_name
from kube.nodes import Node, node_path
from kube.paths import Object, segment

log = logging.getLogger("controller_nodemaintenance")


def data_of(event: BaseCloudEvent) -> Mapping[str, Any]:
    """The event's data, an object. Raises `BadEvent` otherwise."""
    data = event.get_data()
    if not isinstance(data, dict):
        raise BadEvent("data is not a JSON object")
    return data


def metadata_of(event: BaseCloudEvent) -> Mapping[str, Any]:
    """The metadata of the whole object that the API server's event carries, {} when there is none."""
    metadata = data_of(event).get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def reference_of(event: BaseCloudEvent) -> Reference:
    """The NodeMaintenance the event speaks of: in `data.maintenance`, or the data itself when it is the whole object.

    Raises `BadEvent` naming the missing field.
    """
    data = data_of(event)
    whole = data.get("kind") == "NodeMaintenance"
    said, where = (data.get("metadata"), data) if whole else (data.get("maintenance"), data.get("maintenance"))
    if not isinstance(said, dict) or not isinstance(where, dict):
        raise BadEvent("data.maintenance is missing: {apiVersion, name, uid} of a NodeMaintenance")
    for field, value in (("apiVersion", where.get("apiVersion")), ("name", said.get("name")), ("uid", said.get("uid"))):
        if not isinstance(value, str) or not value:
            raise BadEvent(f"the {field} of the NodeMaintenance is missing in data")
    if where["apiVersion"] not in GROUPS:
        raise BadEvent(f"apiVersion {where['apiVersion']} is none of {', '.join(GROUPS)}")
    return Reference(where["apiVersion"], said["name"], said["uid"])


def node_of(event: BaseCloudEvent) -> str:
    """The node's name in the data of one of our own events. Raises `BadEvent` when it is missing."""
    node = data_of(event).get("node")
    if not isinstance(node, str) or not node:
        raise BadEvent("data.node is missing")
    return node


def path_of(reference: Reference) -> str:
    """Path of the referenced object."""
    return f"{GROUPS[reference.api_version].path}/{segment(reference.name)}"


def still(maintenance: Object | None, event: BaseCloudEvent) -> Maintenance | None:
    """The object if it is the one the event speaks of; None when it is gone or was made anew under its name."""
    if maintenance is None or maintenance["metadata"]["uid"] != reference_of(event).uid:
        return None
    return maintenance


def live(event: BaseCloudEvent, cluster: Cluster) -> Maintenance | None:
    """Read the event's NodeMaintenance again; None when it is gone."""
    return still(cluster.run(absent_ok(cluster.api.get(path_of(reference_of(event))))), event)


def maintained(event: BaseCloudEvent, cluster: Cluster) -> tuple[Maintenance, Node] | None:
    """The event's NodeMaintenance and its node, read side by side; None when the node is not its to change now.

    Raises `Failed` when the node is gone.
    """
    name, read = node_of(event), cluster.api.get
    maintenance, node = cluster.together(
        absent_ok(read(path_of(reference_of(event)))), absent_ok(read(node_path(name)))
    )
    maintenance = still(maintenance, event)
    if maintenance is None or not active(maintenance, name):
        return None
    if node is None:
        raise Failed(f'nodes "{name}" not found')
    return maintenance, node


def active(maintenance: Maintenance, node: str) -> bool:
    """Whether this node is its to change now: named by the live object, begun, and not being deleted."""
    return node_name(maintenance) == node and has_begun(maintenance) and not is_deleting(maintenance)


def say(message: str, maintenance: Maintenance, **more: object) -> None:
    """One log line about a maintenance, with the keys an operator greps for (NMO-17, KNM-5)."""
    names = {"Request.Namespace": "", "Request.Name": maintenance["metadata"]["name"], "node": node_name(maintenance)}
    log.info(message, extra={"fields": {**names, **more}})
