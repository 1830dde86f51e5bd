"""Publish the state of a maintenance as lifecycle conditions on its node (KEP-5683).

The step derives the conditions from the node and its NodeMaintenance alone, so that a repeated, late or reordered event
leads to the same conditions. A patch that was computed before a change of the node is rejected, and computed again. At
each tick, the step compares all nodes that a NodeMaintenance names or that have the label of earlier conditions. So it
also replaces lost events, and removes the conditions of maintenances that no longer exist.

In: an updated NodeMaintenance, `node.tainted`; a PingSource tick. Out: nothing.
Touches: nodemaintenances list; nodes get, list; nodes/status patch; leases get in medik8s-leases.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import require_data
from functions.installs import is_active_install
from functions.node_patching import patch_node
from functions.round_robin import RoundRobin
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.client.api import STRATEGIC_MERGE_PATCH, Api, gather_all, get_or_none
from kube.client.api_errors import ApiError, Conflict, NotFound
from kube.client.paging import list_all
from kube.client.sync_client import SyncClient
from kube.maintenance.lookup import list_maintenances
from kube.maintenance.objects import Maintenance, get_node_name
from kube.node_conditions.conditions import (
    CONDITIONS_LABEL,
    build_conditions_patch,
    is_candidate,
    select_maintenance,
    trim_node_to_conditions,
)
from kube.nodes import NODES_PATH, Node, build_node_path
from kube.paths import MALFORMED_OBJECT_ERRORS, Object

STATUS_SUBRESOURCE = "/status"
MAX_READS_PER_TICK, MAX_PATCHES_PER_TICK = 20, 20
"""Maximum number of nodes that a tick reads one by one, and of nodes that it patches. Later ticks do the rest."""
READ_ROTATION, PATCH_ROTATION = RoundRobin(), RoundRobin()
"""Rotations of the nodes to read and to patch, so that nodes that cannot be read or patched exclude no others."""
log = logging.getLogger("functions")


def _parse_node_name(event: BaseCloudEvent) -> str:
    """Return the node's name in an event of this product or in a NodeMaintenance, or "" if there is none.

    An older schema of NodeMaintenance allows objects without a node.
    """
    data = require_data(event)
    return str(data.get("node") or get_node_name(data))


def _build_work_key(event: BaseCloudEvent) -> WorkKey:
    return WorkKey("all nodes" if event.get_type() == events.TICK else f"node {_parse_node_name(event)}")


@step(
    "publish-conditions",
    consumes=(events.RESOURCE_UPDATED, events.NODE_TAINTED, events.TICK),
    emits=(),
    kind="NodeMaintenance",
    coalescing=HintPolicy(_build_work_key),
)
def publish_conditions(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Write the conditions of the event's node, or at a tick those of all nodes; write nothing that is already there.

    Raises `Retry` if other clients keep changing the node. The drain does not depend on the conditions, so a failure is
    only logged, and the next tick tries again.
    """
    if not is_active_install(client):
        return []
    if event.get_type() == events.TICK:
        client.run(_publish_on_all_nodes(client.api))
    elif name := _parse_node_name(event):
        updated = [require_data(event)] if event.get_type() == events.RESOURCE_UPDATED else []
        _publish_on_node(name, updated, client)
    return []


def _publish_on_node(name: str, updated: list[Maintenance], client: SyncClient) -> None:
    """Write the conditions of one node, unless it does not exist, or has the conditions of an `updated` maintenance.

    Most status writes of a drain change no condition, so that no list is necessary.
    """

    def plan_patch() -> tuple[None, Object]:
        # The node is read first: if its maintenance ends later, `restore` changes the node, and the patch is rejected.
        node = client.run(get_or_none(client.api.get(build_node_path(name))))
        if node is None or (updated and not _build_patch(node, updated)):
            return None, {}
        return None, _build_patch(node, client.run(list_maintenances(client.api, name)))

    try:
        patch_node(name, plan_patch, client, subresource=STATUS_SUBRESOURCE, content_type=STRATEGIC_MERGE_PATCH)
    except NotFound:
        return  # The node was deleted after it was read.


async def _publish_on_all_nodes(api: Api) -> None:
    """Write the conditions of the nodes whose conditions differ, at most `MAX_PATCHES_PER_TICK` of them.

    Raises `ApiError` if a list cannot be read, because a maintenance that is missing in a list must not be taken for a
    maintenance that has ended.
    """
    labelled = await list_all(api, NODES_PATH, label_selector=CONDITIONS_LABEL, transform=trim_node_to_conditions)
    maintenances = await list_maintenances(api)
    by_node = defaultdict(list)
    for item in maintenances:
        by_node[get_node_name(item)].append(item)
    unlabelled = await _read_unlabelled_nodes(api, labelled.items, maintenances)
    nodes = {node["metadata"]["name"]: node for node in (*labelled.items, *unlabelled)}
    patches = {name: _build_patch(node, by_node[name]) for name, node in nodes.items()}
    due = PATCH_ROTATION.take((nodes[name] for name, patch in patches.items() if patch), MAX_PATCHES_PER_TICK)
    due_names = [node["metadata"]["name"] for node in due]
    await gather_all(*(_try_patch(name, patches[name], api) for name in due_names))


async def _read_unlabelled_nodes(
    api: Api, labelled: Iterable[Object], maintenances: Iterable[Maintenance]
) -> list[Object]:
    """Return existing nodes that a maintenance names and that have no conditions yet, at most `MAX_READS_PER_TICK`."""
    labelled_names = {node["metadata"]["name"] for node in labelled}
    named = {get_node_name(item): dict(item) for item in maintenances if is_candidate(item)}
    unlabelled = [item for name, item in named.items() if name and name not in labelled_names]
    chosen = READ_ROTATION.take(unlabelled, MAX_READS_PER_TICK)
    return [node for node in await gather_all(*(_try_read(get_node_name(item), api) for item in chosen)) if node]


async def _try_read(name: str, api: Api) -> Object | None:
    """Return the node, or None if it does not exist or cannot be read; the next tick reads it again."""
    try:
        return await get_or_none(api.get(build_node_path(name)))
    except ApiError as error:
        log.warning("cannot read node %s: %s", name, error.message)
        return None


def _build_patch(node: Node, maintenances: Iterable[Maintenance]) -> Object:
    """Return the patch for the node's conditions; a malformed object must not stop the tick, and changes nothing."""
    try:
        return build_conditions_patch(node, select_maintenance(maintenances, node), datetime.now(timezone.utc))
    except MALFORMED_OBJECT_ERRORS as error:
        log.warning("cannot derive the conditions of node %s: %r", node["metadata"]["name"], error)
        return {}


async def _try_patch(name: str, patch: Object, api: Api) -> None:
    """Patch the node's status; the next tick retries a patch that failed."""
    try:
        await api.patch(f"{build_node_path(name)}{STATUS_SUBRESOURCE}", patch, STRATEGIC_MERGE_PATCH)
    except (Conflict, NotFound):
        return  # The node has changed or was deleted since it was read.
    except ApiError as error:
        log.warning("cannot write the conditions of node %s: %s", name, error.message)
