"""Reads the cluster state for the preview of a maintenance: nodes, pods, PodDisruptionBudgets and virtual machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from console.operations.descriptions import suggest_similar
from console.operations.errors import OperationError, Refusal
from console.operations.maintenance_actions import LIST_NODES_REMEDY, build_unknown_node_refusal, get_node_or_refuse
from console.operations.node_vmis import NodeVmis, read_vmis
from kube.budgets import BUDGETS_PATH, Budget
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError
from kube.client.paging import ListResult, list_all
from kube.maintenance.groups import ApiGroup
from kube.maintenance.lookup import find_orphan_uids
from kube.nodes import NODES_PATH
from kube.paths import PODS_PATH, Object, build_pods_on_node_query
from kube.pods import Pod, format_key, get_node_name
from kube.scheduling import find_rejection, trim_node_for_scheduling, trim_pod_for_scheduling

ORDINARY_POD: Pod = {"spec": {}}
"""A pod without tolerations and node selectors, like the product's own pods."""
SCHEDULABLE_NODES_PER_PAGE = 20
"""Number of nodes per page, in addition to the previewed nodes, when the preview searches for one usable node."""
ReadNodeVmis = Callable[[str], Awaitable[NodeVmis]]
"""Function that returns the virtual machines on the node with this name."""


class ClusterSnapshot(NamedTuple):
    """Cluster state that a preview is based on.

    Attributes:
        nodes: All nodes; None if they were not read, or if the user may not list them.
        node_objects: The previewed nodes by name.
        pods: The pods on the previewed nodes, in the order of these nodes.
        other_pods: The pods on all other nodes, trimmed; empty if they were not read.
        orphan_uids: The uids of DaemonSet pods whose DaemonSet does not exist.
        vmis: The virtual machines by node.
        group: The API group of the maintenance.
        has_usable_node: Whether a node that is not previewed accepts pods without tolerations; true if unknown.
        warnings: One sentence for each failed read of optional data.
    """

    nodes: list[Object] | None
    node_objects: Mapping[str, Object]
    pods: Sequence[Pod]
    other_pods: Sequence[Pod]
    budgets: Sequence[Budget]
    orphan_uids: Collection[str]
    vmis: Mapping[str, NodeVmis]
    group: ApiGroup
    has_usable_node: bool = True
    warnings: tuple[str, ...] = ()


class _Lists(NamedTuple):
    """Lists from the API server: pods (trimmed if not on a previewed node), budgets, and nodes (None if not read)."""

    pods: list[Object]
    budgets: list[Object]
    nodes: ListResult | ApiError | None


async def read_snapshot(
    api: Api,
    names: Sequence[str],
    group: ApiGroup,
    *,
    read_node_vmis: ReadNodeVmis | None = None,
    reads_other_nodes: bool = True,
) -> ClusterSnapshot:
    """Read the cluster state for a preview of a maintenance of these nodes in this API group.

    `read_node_vmis` replaces `read_vmis`, for example to check permissions first. If `reads_other_nodes` is false, the
    requests are cheap even in a large cluster, but the capacity of the other nodes stays unknown. Raises `Refusal` if a
    node does not exist, and `OperationError` or `ApiError` if the pods or PodDisruptionBudgets cannot be read, because
    the preview would be wrong without them. Other failed reads only cause warnings.
    """
    positions = {name: position for position, name in enumerate(names)}
    lists = await _read_lists(api, positions, reads_other_nodes=reads_other_nodes)
    node_objects, node_warnings = await _select_nodes(api, names, lists.nodes)
    pods = sorted(
        (pod for pod in lists.pods if get_node_name(pod) in positions),
        key=lambda pod: (positions[get_node_name(pod)], format_key(pod)),
    )
    orphan_uids, orphan_warnings = await _try_find_orphan_uids(api, pods)
    all_nodes = lists.nodes.items if isinstance(lists.nodes, ListResult) else None
    vmis = dict(zip(names, await gather_all(*map(read_node_vmis or partial(read_vmis, api), names)), strict=True))
    problems = dict.fromkeys(text for node_vmis in vmis.values() for text in node_vmis.list_problems(group))
    return ClusterSnapshot(
        all_nodes,
        node_objects,
        pods,
        [pod for pod in lists.pods if get_node_name(pod) and get_node_name(pod) not in positions],
        lists.budgets,
        orphan_uids,
        vmis,
        group,
        await _has_usable_node(api, positions) if all_nodes is None else contains_usable_node(all_nodes, positions),
        (*node_warnings, *orphan_warnings, *problems),
    )


async def _read_lists(api: Api, names: Collection[str], *, reads_other_nodes: bool) -> _Lists:
    """Read the lists concurrently. Raises a single error if pods or PodDisruptionBudgets cannot be listed."""

    def trim_pod(pod: Object) -> Object:
        return pod if get_node_name(pod) in names else trim_pod_for_scheduling(pod)

    node_reads = [list_all(api, NODES_PATH, transform=trim_node_for_scheduling)] if reads_other_nodes else []
    results = await asyncio.gather(
        list_all(api, PODS_PATH, transform=trim_pod) if reads_other_nodes else _list_pods_on_nodes(api, names),
        list_all(api, BUDGETS_PATH),
        *node_reads,
        return_exceptions=True,
    )
    pods, budgets, *nodes = map(_raise_unexpected_error, results)
    if isinstance(pods, ApiError) or isinstance(budgets, ApiError):
        raise _combine_errors([result for result in (pods, budgets) if isinstance(result, ApiError)])
    return _Lists(pods.items, budgets.items, nodes[0] if nodes else None)


def contains_usable_node(nodes: Iterable[Object], previewed_names: Collection[str]) -> bool:
    """Return whether a node that is not previewed accepts pods without tolerations, regardless of free resources."""
    return any(
        node["metadata"]["name"] not in previewed_names and not find_rejection(ORDINARY_POD, node) for node in nodes
    )


async def _has_usable_node(api: Api, previewed_names: Collection[str]) -> bool:
    """Read pages of schedulable nodes until one contains a usable node; return true if the nodes cannot be read."""
    limit, continue_token = SCHEDULABLE_NODES_PER_PAGE + len(previewed_names), ""
    with suppress(ApiError):
        while True:
            page = await api.list(
                NODES_PATH, field_selector="spec.unschedulable=false", limit=limit, continue_token=continue_token
            )
            if contains_usable_node(page["items"], previewed_names):
                return True
            continue_token = page["metadata"].get("continue") or ""
            if not continue_token:
                return False
    return True


async def _list_pods_on_nodes(api: Api, names: Iterable[str]) -> ListResult:
    """List the pods on these nodes, with one request per node."""
    lists = await gather_all(*(_list_pods_on_node(api, name) for name in names))
    return ListResult([pod for result in lists for pod in result.items], "")


async def _list_pods_on_node(api: Api, name: str) -> ListResult:
    path, field_selector = build_pods_on_node_query(name)
    return await list_all(api, path, field_selector=field_selector)


async def _try_find_orphan_uids(api: Api, pods: Iterable[Pod]) -> tuple[Collection[str], tuple[str, ...]]:
    """Return the uids of pods whose DaemonSet no longer exists, and a warning if the DaemonSets cannot be read."""
    try:
        return await find_orphan_uids(api, pods), ()
    except ApiError as error:
        return (), (f"cannot read DaemonSets, so the preview assumes that all of them exist: {error.message}",)


def _raise_unexpected_error(result: ListResult | BaseException) -> ListResult | ApiError:
    """Return `result` if it is a list or an `ApiError`; raise any other exception."""
    if isinstance(result, BaseException) and not isinstance(result, ApiError):
        raise result
    return result


def _combine_errors(errors: Sequence[ApiError]) -> ApiError | OperationError:
    """Return a single error that contains all messages, so that the user sees all missing permissions."""
    if len(errors) == 1:
        return errors[0]
    return OperationError(
        "; ".join(error.message for error in errors),
        "ask an administrator for these permissions, or use another --context",
        HTTPStatus.FORBIDDEN,
    )


async def _select_nodes(
    api: Api, names: Sequence[str], nodes: ListResult | ApiError | None
) -> tuple[dict[str, Object], tuple[str, ...]]:
    """Return the previewed nodes by name, and a warning if the list of nodes could not be read.

    Raises `Refusal` if a node does not exist.
    """
    if not isinstance(nodes, ListResult):
        found = dict(zip(names, await gather_all(*(get_node_or_refuse(api, name) for name in names)), strict=True))
        if nodes is None:
            return found, ()
        return found, (f"cannot list nodes, so the capacity of the other nodes is unknown: {nodes.message}",)
    by_name = {node["metadata"]["name"]: node for node in nodes.items}
    if missing := [name for name in names if name not in by_name]:
        raise _build_unknown_nodes_refusal(missing, by_name)
    return {name: by_name[name] for name in names}, ()


def _build_unknown_nodes_refusal(names: Sequence[str], known_names: Iterable[str]) -> Refusal:
    if len(names) == 1:
        return build_unknown_node_refusal(names[0], suggest_similar(names[0], known_names, LIST_NODES_REMEDY))
    listed = ", ".join(f'"{name}"' for name in names)
    return Refusal(HTTPStatus.NOT_FOUND, f"nodes {listed} not found", LIST_NODES_REMEDY)
