"""Finds the NodeMaintenance that an event names, and reads it again before a step makes a decision (X-2)."""

from __future__ import annotations

import logging
import re

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from eventing.http_binding import BadEvent
from functions.event_data import data_of, is_text
from functions.failures import Failed, retry
from kube.client.api import Api, absent_ok
from kube.client.concurrent_requests import together
from kube.client.sync_client import Cluster
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import Maintenance, began_on, has_begun, has_given_up, is_deleting, node_name, spec_of
from kube.maintenance.status_patch import LONGEST_ERROR
from kube.nodes import Node, node_path
from kube.paths import Object, segment
from kube.text_limits import shortened

NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Matches the names that the API server accepts for a node or a NodeMaintenance."""
log = logging.getLogger("controller_nodemaintenance")


def reference_of(event: BaseCloudEvent) -> Reference:
    """Return a reference to the NodeMaintenance in `data.maintenance`, or to the data itself if it is the object.

    Raises `BadEvent` that names the missing or invalid field.
    """
    data = data_of(event)
    whole = data.get("kind") == "NodeMaintenance"
    names, where = (data.get("metadata"), data) if whole else (data.get("maintenance"), data.get("maintenance"))
    if not isinstance(names, dict) or not isinstance(where, dict):
        raise BadEvent("data.maintenance is missing: {apiVersion, name, uid} of a NodeMaintenance")
    fields = {"apiVersion": where.get("apiVersion"), "name": names.get("name"), "uid": names.get("uid")}
    for field, value in fields.items():
        if not is_text(value):
            raise BadEvent(f"the {field} of the NodeMaintenance is missing in data")
    if not NAME.fullmatch(str(fields["name"])):
        raise BadEvent("the name of the NodeMaintenance is none that an object can have")
    if where["apiVersion"] not in GROUPS:
        raise BadEvent(f"apiVersion {where['apiVersion']} is none of {', '.join(GROUPS)}")
    return Reference(where["apiVersion"], names["name"], names["uid"])


def node_of(event: BaseCloudEvent) -> str:
    """Return the node's name in the data of one of our own events. Raises `BadEvent` if it is missing or invalid."""
    node = data_of(event).get("node")
    if not is_text(node):
        raise BadEvent("data.node is missing")
    if not NAME.fullmatch(str(node)):  # an error would quote it, and the status show arbitrary text
        raise BadEvent("data.node is no name that a node can have")
    return str(node)


def path_of(reference: Reference) -> str:
    """Return the API path of the referenced object."""
    return f"{GROUPS[reference.api_version].path}/{segment(reference.name)}"


def if_same(maintenance: Object | None, event: BaseCloudEvent) -> Maintenance | None:
    """Return the object if its uid is the one in the event; None if it is gone or was recreated with the same name."""
    if maintenance is None or maintenance["metadata"]["uid"] != reference_of(event).uid:
        return None
    return maintenance


def read_maintenance(event: BaseCloudEvent, cluster: Cluster) -> Maintenance | None:
    """Return the current state of the event's NodeMaintenance; None if it is gone."""
    return if_same(cluster.run(absent_ok(cluster.api.get(path_of(reference_of(event))))), event)


def read_active(event: BaseCloudEvent, cluster: Cluster) -> tuple[Maintenance, Node] | None:
    """Read the event's NodeMaintenance and its node concurrently; return None if the maintenance is not active.

    Raises `Failed` if the node no longer exists, or if a different node has the same name.
    """
    return cluster.run(active(event, cluster.api))


async def active(event: BaseCloudEvent, api: Api) -> tuple[Maintenance, Node] | None:
    """Do the same as `read_active`, for a caller that concurrently reads more."""
    name = node_of(event)
    paths = path_of(reference_of(event)), node_path(name)
    found, node = await together(*(absent_ok(api.get(path)) for path in paths))
    maintenance = if_same(found, event)
    if maintenance is None or not is_active(maintenance, name):
        return None
    if node is None:
        raise Failed(f'nodes "{name}" not found')
    if not began_on(maintenance, node):
        raise Failed(f'node "{name}" is another one than the maintenance began on')
    return maintenance, node


def is_active(maintenance: Maintenance, node: str) -> bool:
    """Return whether the maintenance may change this node now: it names the node, has begun and is not ending."""
    is_ending = is_deleting(maintenance) or has_given_up(maintenance)
    return node_name(maintenance) == node and has_begun(maintenance) and not is_ending


def failed(step: str, event: BaseCloudEvent, error: str, **more: object) -> list[BaseCloudEvent]:
    """Return `maintenance.failed` with the data `more`, which the `status` step records.

    Raises `Retry` if the event names no maintenance.
    """
    data = data_of(event)
    if not ("maintenance" in data or data.get("kind") == "NodeMaintenance"):
        return retry(step, event, error)
    names = (data.get("node"), spec_of(data).get("nodeName"))
    reference, node = reference_of(event), next((str(name) for name in names if is_text(name)), "-")
    details = {"step": step, "error": shortened(error, LONGEST_ERROR), **more}
    return [events.event(events.MAINTENANCE_FAILED, step, reference, node, cause=event, data=details)]


def log_about(message: str, maintenance: Maintenance, **more: object) -> None:
    """Log one line about a maintenance, with the keys that administrators search for (NMO-17, NMO-17a, KNM-5)."""
    name, node = maintenance["metadata"]["name"], node_name(maintenance)
    kind = {"reconciler group": maintenance["apiVersion"].split("/")[0], "reconciler kind": "NodeMaintenance"}
    names = {"name": name, "namespace": "", "Request.Namespace": "", "Request.Name": name}
    log.info(message, extra={"fields": {**kind, **names, "node": node, "nodeName": node, **more}})
