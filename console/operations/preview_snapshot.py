"""Reads what the preview of a maintenance needs: nodes, pods, budgets and virtual machines."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

from console.operations.descriptions import suggest_similar
from console.operations.drain_preview import NodeVmis, read_vmis, try_find_orphan_uids
from console.operations.errors import OperationError, Refusal
from console.operations.maintenance_actions import LIST_NODES_REMEDY, build_unknown_node_refusal, get_node_or_refuse
from kube.budgets import BUDGETS_PATH, Budget
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError
from kube.client.paging import ListResult, list_all
from kube.maintenance.groups import ApiGroup
from kube.nodes import NODES_PATH
from kube.paths import PODS_PATH, Object
from kube.pods import Pod, format_key, get_node_name
from kube.scheduling import trim_node_for_scheduling, trim_pod_for_scheduling


class ClusterSnapshot(NamedTuple):
    """What a preview reads.

    Attributes:
        nodes: All nodes, None if the user may not list them.
        pods: The pods on the previewed nodes, in the order of these nodes.
        other_pods: The pods on all other nodes, trimmed.
        orphan_uids: The uids of DaemonSet pods whose DaemonSet does not exist.
        vmis: The virtual machines by node.
        group: The API group of the maintenance.
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
    warnings: tuple[str, ...] = ()


class _Lists(NamedTuple):
    """The lists of a whole cluster: pods, of which those on other nodes are trimmed, budgets, and nodes if allowed."""

    pods: list[Object]
    budgets: list[Object]
    nodes: ListResult | ApiError


async def read_snapshot(api: Api, names: Sequence[str], group: ApiGroup) -> ClusterSnapshot:
    """Read the cluster for a preview of these nodes, in this API group.

    Raises `Refusal` if a node does not exist, and `OperationError` or `ApiError` if the pods or budgets cannot be read,
    because the preview would be wrong without them. Other failed reads become warnings.
    """
    lists = await _read_lists(api, names)
    node_objects, node_warnings = await _select_nodes(api, names, lists.nodes)
    pods = sorted(
        (pod for pod in lists.pods if get_node_name(pod) in names),
        key=lambda pod: (names.index(get_node_name(pod)), format_key(pod)),
    )
    orphan_uids, orphan_warnings = await try_find_orphan_uids(api, pods)
    vmis = dict(zip(names, await gather_all(*(read_vmis(api, name) for name in names)), strict=True))
    problems = dict.fromkeys(text for node_vmis in vmis.values() for text in node_vmis.list_problems(group))
    return ClusterSnapshot(
        None if isinstance(lists.nodes, ApiError) else lists.nodes.items,
        node_objects,
        pods,
        [pod for pod in lists.pods if get_node_name(pod) not in ("", *names)],
        lists.budgets,
        orphan_uids,
        vmis,
        group,
        (*node_warnings, *orphan_warnings, *problems),
    )


async def _read_lists(api: Api, names: Sequence[str]) -> _Lists:
    """Read the lists concurrently. Raises one error for all required lists that cannot be read."""

    def trim_pod(pod: Object) -> Object:
        return pod if get_node_name(pod) in names else trim_pod_for_scheduling(pod)

    results = await asyncio.gather(
        list_all(api, PODS_PATH, transform=trim_pod),
        list_all(api, BUDGETS_PATH),
        list_all(api, NODES_PATH, transform=trim_node_for_scheduling),
        return_exceptions=True,
    )
    pods, budgets, nodes = map(_raise_unexpected_error, results)
    if isinstance(pods, ApiError) or isinstance(budgets, ApiError):
        raise _combine_errors([result for result in (pods, budgets) if isinstance(result, ApiError)])
    return _Lists(pods.items, budgets.items, nodes)


def _raise_unexpected_error(result: ListResult | BaseException) -> ListResult | ApiError:
    """Return a list or an error of the API server; raise any other error."""
    if isinstance(result, BaseException) and not isinstance(result, ApiError):
        raise result
    return result


def _combine_errors(errors: Sequence[ApiError]) -> ApiError | OperationError:
    """Return the only error, or one error that lists all, so that missing permissions appear at once."""
    if len(errors) == 1:
        return errors[0]
    return OperationError(
        "; ".join(error.message for error in errors),
        "ask an administrator for these permissions, or use another --context",
        HTTPStatus.FORBIDDEN,
    )


async def _select_nodes(
    api: Api, names: Sequence[str], nodes: ListResult | ApiError
) -> tuple[dict[str, Object], tuple[str, ...]]:
    """Return the previewed nodes by name, and a warning if the list of nodes could not be read.

    Raises `Refusal` if a node does not exist.
    """
    if isinstance(nodes, ApiError):
        found = await gather_all(*(get_node_or_refuse(api, name) for name in names))
        warning = f"cannot list nodes, so the capacity of the other nodes is unknown: {nodes.message}"
        return dict(zip(names, found, strict=True)), (warning,)
    by_name = {node["metadata"]["name"]: node for node in nodes.items}
    if missing := [name for name in names if name not in by_name]:
        raise _build_unknown_nodes_refusal(missing, by_name)
    return {name: by_name[name] for name in names}, ()


def _build_unknown_nodes_refusal(names: Sequence[str], known_names: Iterable[str]) -> Refusal:
    if len(names) == 1:
        return build_unknown_node_refusal(names[0], suggest_similar(names[0], known_names, LIST_NODES_REMEDY))
    listed = ", ".join(f'"{name}"' for name in names)
    return Refusal(HTTPStatus.NOT_FOUND, f"nodes {listed} not found", LIST_NODES_REMEDY)
