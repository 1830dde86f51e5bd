"""Parses the NodeMaintenance reference in an event, and reads that NodeMaintenance before a step decides (X-2)."""

from __future__ import annotations

import logging
import re

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import ObjectReference
from eventing.http_binding import BadEvent
from functions.event_data import is_nonempty_string, require_data
from functions.failures import Failed, raise_retry
from kube.client.api import Api, gather_all, get_or_none
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import (
    Maintenance,
    get_node_name,
    get_spec,
    has_begun,
    has_begun_on,
    has_lost_lease,
    is_deleting,
)
from kube.maintenance.status_patch import MAX_ERROR_CHARACTERS
from kube.nodes import Node, build_node_path
from kube.paths import Object, encode_path_segment
from kube.text_limits import truncate

NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Matches the names that the API server accepts for a node or a NodeMaintenance."""
log = logging.getLogger("controller_nodemaintenance")


def parse_reference(event: BaseCloudEvent) -> ObjectReference:
    """Return a reference to the event's NodeMaintenance, which is in `data.maintenance` or is the data itself.

    Raises a `BadEvent` that names the missing or invalid field.
    """
    data = require_data(event)
    is_object = data.get("kind") == "NodeMaintenance"
    names, typed = (data.get("metadata"), data) if is_object else (data.get("maintenance"), data.get("maintenance"))
    if not isinstance(names, dict) or not isinstance(typed, dict):
        raise BadEvent("data.maintenance is missing: {apiVersion, name, uid} of a NodeMaintenance")
    fields = {"apiVersion": typed.get("apiVersion"), "name": names.get("name"), "uid": names.get("uid")}
    for field, value in fields.items():
        if not is_nonempty_string(value):
            raise BadEvent(f"the {field} of the NodeMaintenance is missing in data")
    if not NAME_PATTERN.fullmatch(str(fields["name"])):
        raise BadEvent("the name of the NodeMaintenance is not a valid object name")
    if typed["apiVersion"] not in GROUPS:
        raise BadEvent(f"apiVersion {typed['apiVersion']} is not one of {', '.join(GROUPS)}")
    return ObjectReference(typed["apiVersion"], names["name"], names["uid"])


def parse_node_name(event: BaseCloudEvent) -> str:
    """Return the node name in `data.node`. Raises `BadEvent` if the name is missing or invalid."""
    node = require_data(event).get("node")
    if not is_nonempty_string(node):
        raise BadEvent("data.node is missing")
    # Error messages in the status quote the name. Without this check, an event could put any text into the status.
    if not NAME_PATTERN.fullmatch(str(node)):
        raise BadEvent("data.node is not a valid node name")
    return str(node)


def build_path(reference: ObjectReference) -> str:
    """Return the API path of the referenced NodeMaintenance."""
    return f"{GROUPS[reference.api_version].path}/{encode_path_segment(reference.name)}"


def return_if_uid_matches(maintenance: Object | None, event: BaseCloudEvent) -> Maintenance | None:
    """Return the maintenance if its uid matches the event; None if it was deleted, or recreated with the same name."""
    if maintenance is None or maintenance["metadata"]["uid"] != parse_reference(event).uid:
        return None
    return maintenance


def read_maintenance(event: BaseCloudEvent, client: SyncClient) -> Maintenance | None:
    """Read the event's NodeMaintenance from the API server; return None if it no longer exists."""
    return return_if_uid_matches(client.run(get_or_none(client.api.get(build_path(parse_reference(event))))), event)


async def fetch_active_maintenance(event: BaseCloudEvent, api: Api) -> tuple[Maintenance, Node] | None:
    """Read the event's NodeMaintenance and its node concurrently; return None if the maintenance is not active.

    Raises `Failed` if the node no longer exists, or was recreated with the same name.
    """
    name = parse_node_name(event)
    paths = build_path(parse_reference(event)), build_node_path(name)
    current, node = await gather_all(*(get_or_none(api.get(path)) for path in paths))
    maintenance = return_if_uid_matches(current, event)
    if maintenance is None or not is_active(maintenance, name):
        return None
    if node is None:
        raise Failed(f'nodes "{name}" not found')
    if not has_begun_on(maintenance, node):
        raise Failed(f'node "{name}" was deleted and created again since the maintenance began')
    return maintenance, node


def is_active(maintenance: Maintenance, node: str) -> bool:
    """Return whether the maintenance may change this node now.

    The maintenance is active if it names the node, has begun, is not being deleted, and has not lost the node's Lease.
    """
    is_ending = is_deleting(maintenance) or has_lost_lease(maintenance)
    return get_node_name(maintenance) == node and has_begun(maintenance) and not is_ending


def build_step_failed(step: str, event: BaseCloudEvent, error: str, **extra: object) -> list[BaseCloudEvent]:
    """Return `maintenance.step_failed`, with `extra` as additional event data for `status`.

    Raises `Retry` if the failed event names no maintenance.
    """
    data = require_data(event)
    if not ("maintenance" in data or data.get("kind") == "NodeMaintenance"):
        return raise_retry(step, event, error)
    names = (data.get("node"), get_spec(data).get("nodeName"))
    reference, node = parse_reference(event), next((str(name) for name in names if is_nonempty_string(name)), "-")
    details = {"step": step, "error": truncate(error, MAX_ERROR_CHARACTERS), **extra}
    return [events.build_event(events.MAINTENANCE_STEP_FAILED, step, reference, node, cause=event, data=details)]


def log_about(message: str, maintenance: Maintenance, **fields: object) -> None:
    """Log a message about a maintenance, with log fields that identify it and its node (NMO-17, NMO-17a, KNM-5)."""
    name, node = maintenance["metadata"]["name"], get_node_name(maintenance)
    kind = {"reconciler group": maintenance["apiVersion"].split("/")[0], "reconciler kind": "NodeMaintenance"}
    names = {"name": name, "namespace": "", "Request.Namespace": "", "Request.Name": name}
    log.info(message, extra={"fields": {**kind, **names, "node": node, "nodeName": node, **fields}})
