"""Reads NodeMaintenances of all API groups, and related objects; a missing CRD counts as an empty list (C7)."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from http import HTTPStatus

from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import ApiError, NotFound, Rejected, Unavailable
from kube.client.paging import ListResult, list_all
from kube.maintenance.groups import GROUPS, ApiGroup
from kube.maintenance.objects import Maintenance, get_node_name, is_deleting
from kube.maintenance.quorum import CONTROL_PLANE_LABELS, ETCD_NAMESPACE, GUARD_BUDGET_NAMES, ControlPlaneSnapshot
from kube.nodes import NODES_PATH, is_labelled_with_maintenance
from kube.paths import Object, build_node_name_selector, build_pods_on_node_query
from kube.pods import Pod, get_controller, get_uid, is_daemonset_pod
from kube.trimming import POD_LIST_DECODER, trim_pod_for_drain

log = logging.getLogger("functions")


async def list_maintenances(
    api: Api, node_name: str | None = None, resource_version: str | None = None
) -> list[Object]:
    """Return the NodeMaintenances of all API groups, oldest first.

    `node_name` limits them to the maintenances of one node. `resource_version` has the same meaning as in `Api.list`:
    None reads the latest state, "0" the API server's cache.
    """
    found = await gather_all(
        *(list_maintenances_of_group(api, group, node_name, resource_version) for group in GROUPS.values())
    )
    return sort_by_age(item for items in found for item in items)


async def list_undeleted_maintenances(api: Api, node_name: str, resource_version: str | None = None) -> list[Object]:
    """Return the NodeMaintenances of `node_name` that are not being deleted, oldest first.

    An API group that rejects the list request is skipped. Raises the same errors as `collect_group_lists`.
    """
    reads = (list_maintenances_of_group(api, group, node_name, resource_version) for group in GROUPS.values())
    lists = collect_group_lists(await asyncio.gather(*reads, return_exceptions=True))
    return sort_by_age(item for items in lists for item in items or [] if not is_deleting(item))


def collect_group_lists(results: Iterable[list[Object] | BaseException]) -> list[list[Object] | None]:
    """Return the list of each API group, None for a group that rejected the request; log each rejection.

    Raises `Unavailable` if a request got no response, so that a partial result is not mistaken for a complete one. If
    all requests were rejected, raises the first error.
    """
    results = list(results)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if isinstance(error, Unavailable) or not isinstance(error, ApiError):
            raise error
        log.warning("failed to list the NodeMaintenances of an API group: %s", error.message)
    if len(errors) == len(results):
        raise errors[0]
    return [None if isinstance(result, BaseException) else result for result in results]


async def list_maintenances_of_holder_group(
    api: Api, node_name: str, holder_uid: str, resource_version: str | None = None
) -> list[Object]:
    """Return the NodeMaintenances of `node_name` in the API group of the node's holder, oldest first.

    `holder_uid` is the uid of the holding NodeMaintenance. The function queries one group after another, because the
    holder is usually in the first group. If no group contains the holder, the function returns the NodeMaintenances of
    all groups. A group that rejects the request is skipped. Raises the same errors as `collect_group_lists`.
    """
    results: list[list[Object] | BaseException] = []
    for group in GROUPS.values():
        try:
            items = await list_maintenances_of_group(api, group, node_name, resource_version)
        except ApiError as error:
            results.append(error)
            continue
        if any(item["metadata"]["uid"] == holder_uid for item in items):
            return sort_by_age(items)
        results.append(items)
    return sort_by_age(item for listed in collect_group_lists(results) for item in listed or [])


async def list_maintenances_of_group(
    api: Api, group: ApiGroup, node_name: str | None = None, resource_version: str | None = None
) -> list[Object]:
    """Return one API group's NodeMaintenances, unsorted; empty if the group's CRD is not installed.

    `node_name` limits them to one node. Another product's CRD may not support the field selector for this. The function
    then reads all objects of the group and filters them.
    """
    try:
        items = (
            await list_all(
                api,
                group.path,
                field_selector="" if node_name is None else build_node_name_selector(node_name),
                resource_version=resource_version,
            )
        ).items
    except NotFound:
        return []
    except Rejected as error:
        if node_name is None or not is_selector_unsupported(error):
            raise
        listed = await list_all(api, group.path, resource_version=resource_version)
        items = [item for item in listed.items if get_node_name(item) == node_name]
    return [{**item, "apiVersion": group.api_version, "kind": "NodeMaintenance"} for item in items]


def is_selector_unsupported(error: Rejected) -> bool:
    """Return whether the API server rejected a list or watch request because the CRD lacks the selectable field."""
    return error.status == HTTPStatus.BAD_REQUEST


async def list_pods_on_node(api: Api, node_name: str, resource_version: str | None = None) -> ListResult:
    """Return the pods on a node, each reduced to the fields that a drain needs.

    The reduction saves memory, because each of many concurrent passes keeps such a list. `resource_version` has the
    same meaning as in `Api.list`. The request is not paged, because the API server would read a page from etcd, and
    thus the pods of all nodes for each page.
    """
    path, field_selector = build_pods_on_node_query(node_name)
    pod_list = await api.list(
        path, field_selector=field_selector, resource_version=resource_version, decoder=POD_LIST_DECODER
    )
    return ListResult(
        [trim_pod_for_drain(pod) for pod in pod_list["items"]], str(pod_list["metadata"]["resourceVersion"])
    )


async def find_orphan_uids(api: Api, pods: Iterable[Pod]) -> set[str]:
    """Return the uids of the DaemonSet pods whose DaemonSet was deleted, so that no controller manages them (NMO-7)."""
    pods_by_path: dict[str, list[Pod]] = defaultdict(list)
    for pod in filter(is_daemonset_pod, pods):
        name = (get_controller(pod) or {})["name"]
        pods_by_path[f"/apis/apps/v1/namespaces/{pod['metadata']['namespace']}/daemonsets/{name}"].append(pod)
    daemonsets = await gather_all(*(get_or_none(api.get(path)) for path in pods_by_path))
    missing = [path for path, daemonset in zip(pods_by_path, daemonsets, strict=True) if daemonset is None]
    return {get_uid(pod) for path in missing for pod in pods_by_path[path]}


def sort_by_age(items: Iterable[Object]) -> list[Object]:
    """Return the objects sorted by creation time, oldest first."""
    return sorted(items, key=lambda item: (item["metadata"]["creationTimestamp"], item["metadata"]["uid"]))


async def read_control_plane(
    api: Api, excluded_uid: str, is_disruption: Callable[[Maintenance], bool]
) -> ControlPlaneSnapshot:
    """Read the control-plane nodes, and which of them maintenances other than `excluded_uid` disrupt.

    `is_disruption` decides whether a maintenance disrupts its node. If the node has the maintenance's label, the
    maintenance always counts, because the node stays cordoned until it is restored. The function lists the maintenances
    of each node, because even a large cluster has few control-plane nodes.
    """
    budgets_path = f"/apis/policy/v1/namespaces/{ETCD_NAMESPACE}/poddisruptionbudgets"
    reads = (api.list(NODES_PATH, label_selector=label) for label in CONTROL_PLANE_LABELS)
    *node_lists, current_guard_budget, legacy_guard_budget = await gather_all(
        *reads, *(get_or_none(api.get(f"{budgets_path}/{name}")) for name in GUARD_BUDGET_NAMES)
    )
    nodes = {node["metadata"]["name"]: node for node_list in node_lists for node in node_list["items"]}
    guard_budgets = [
        guard_budget for guard_budget in (current_guard_budget, legacy_guard_budget) if guard_budget is not None
    ]
    pods = (await api.list(f"/api/v1/namespaces/{ETCD_NAMESPACE}/pods"))["items"] if guard_budgets else []
    maintenances_by_node = await gather_all(*(list_maintenances(api, name) for name in nodes))
    maintained_nodes = {
        name
        for (name, node), items in zip(nodes.items(), maintenances_by_node, strict=True)
        for item in items
        if item["metadata"]["uid"] != excluded_uid
        and (is_disruption(item) or is_labelled_with_maintenance(node, item["metadata"]["uid"]))
    }
    return ControlPlaneSnapshot(list(nodes.values()), maintained_nodes, guard_budgets, pods)
