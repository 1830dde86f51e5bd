"""Publish the state of a maintenance as lifecycle conditions on its node (KEP-5683).

The step derives the conditions only from the node and its NodeMaintenance, so that repeated, late or reordered events
lead to the same conditions. If the node changes before the patch arrives, the API server rejects the patch, and the
step computes it again. On each PingSource event, the step checks all nodes that a NodeMaintenance names and all nodes
whose label shows that they have conditions. It thereby compensates for lost events, and removes the conditions of
maintenances that no longer exist.

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
"""Maximum numbers of single nodes to read and of nodes to patch per PingSource event; later events handle the rest."""
READ_ROTATION, PATCH_ROTATION = RoundRobin(), RoundRobin()
"""Round-robin positions for the nodes to read and to patch, so that failing nodes do not starve the other nodes."""
log = logging.getLogger("functions")


def _parse_node_name(event: BaseCloudEvent) -> str:
    """Return the node name in the event's data, which either has the field `node` or is a NodeMaintenance.

    Returns "" for a NodeMaintenance without `spec.nodeName`, which an older schema allows.
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
    """Update the conditions of the event's node, or of all nodes if a PingSource event triggered the step.

    On a PingSource event, an error of one node is only logged, and a later event retries. For a single node, raises
    `Retry` if other clients keep changing the node.
    """
    if not is_active_install(client):
        return []
    if event.get_type() == events.TICK:
        client.run(_publish_conditions_of_all_nodes(client.api))
    elif name := _parse_node_name(event):
        updated_maintenances = [require_data(event)] if event.get_type() == events.RESOURCE_UPDATED else []
        _publish_node_conditions(name, updated_maintenances, client)
    return []


def _publish_node_conditions(name: str, updated_maintenances: list[Maintenance], client: SyncClient) -> None:
    """Update the conditions of one node, unless the node does not exist.

    If the conditions already match one of `updated_maintenances`, the function does not list all maintenances, because
    most status writes during a drain change no condition.
    """

    def read_and_build_patch() -> tuple[None, Object]:
        # Read the node first: if its maintenance ends after that, `restore` changes the node and the patch is rejected.
        node = client.run(get_or_none(client.api.get(build_node_path(name))))
        if node is None or (updated_maintenances and not _try_build_conditions_patch(node, updated_maintenances)):
            return None, {}
        return None, _try_build_conditions_patch(node, client.run(list_maintenances(client.api, name)))

    try:
        patch_node(
            name, read_and_build_patch, client, subresource=STATUS_SUBRESOURCE, content_type=STRATEGIC_MERGE_PATCH
        )
    except NotFound:
        return  # The node was deleted after it had been read.


async def _publish_conditions_of_all_nodes(api: Api) -> None:
    """Patch at most `MAX_PATCHES_PER_TICK` nodes whose conditions are outdated.

    Raises `ApiError` if a list request fails, because the function would otherwise mistake a maintenance that is
    missing in a list for one that has ended.
    """
    labelled = await list_all(api, NODES_PATH, label_selector=CONDITIONS_LABEL, transform=trim_node_to_conditions)
    maintenances = await list_maintenances(api)
    by_node = defaultdict(list)
    for item in maintenances:
        by_node[get_node_name(item)].append(item)
    unlabelled = await _read_unlabelled_nodes(api, labelled.items, maintenances)
    nodes = {node["metadata"]["name"]: node for node in (*labelled.items, *unlabelled)}
    patches = {name: _try_build_conditions_patch(node, by_node[name]) for name, node in nodes.items()}
    due = PATCH_ROTATION.take((nodes[name] for name, patch in patches.items() if patch), MAX_PATCHES_PER_TICK)
    due_names = [node["metadata"]["name"] for node in due]
    await gather_all(*(_try_patch_node_status(name, patches[name], api) for name in due_names))


async def _read_unlabelled_nodes(
    api: Api, labelled: Iterable[Object], maintenances: Iterable[Maintenance]
) -> list[Object]:
    """Read at most `MAX_READS_PER_TICK` nodes that a maintenance names but that do not have the label yet.

    Returns the nodes that exist.
    """
    labelled_names = {node["metadata"]["name"] for node in labelled}
    named = {get_node_name(item): dict(item) for item in maintenances if is_candidate(item)}
    unlabelled = [item for name, item in named.items() if name and name not in labelled_names]
    chosen = READ_ROTATION.take(unlabelled, MAX_READS_PER_TICK)
    return [node for node in await gather_all(*(_try_read_node(get_node_name(item), api) for item in chosen)) if node]


async def _try_read_node(name: str, api: Api) -> Object | None:
    """Return the node, or None if it does not exist or the request fails; a later PingSource event reads it again."""
    try:
        return await get_or_none(api.get(build_node_path(name)))
    except ApiError as error:
        log.warning("cannot read node %s: %s", name, error.message)
        return None


def _try_build_conditions_patch(node: Node, maintenances: Iterable[Maintenance]) -> Object:
    """Return the patch of the node's conditions; for a malformed object, log the error and return an empty patch."""
    try:
        return build_conditions_patch(node, select_maintenance(maintenances, node), datetime.now(timezone.utc))
    except MALFORMED_OBJECT_ERRORS as error:
        log.warning("cannot determine the conditions of node %s: %r", node["metadata"]["name"], error)
        return {}


async def _try_patch_node_status(name: str, patch: Object, api: Api) -> None:
    """Patch the node's status; log an API error, because a later PingSource event retries the patch."""
    try:
        await api.patch(f"{build_node_path(name)}{STATUS_SUBRESOURCE}", patch, STRATEGIC_MERGE_PATCH)
    except (Conflict, NotFound):
        return  # Another client has changed or deleted the node since it was read.
    except ApiError as error:
        log.warning("cannot write the conditions of node %s: %s", name, error.message)
