"""Lists NodeMaintenance objects of all API groups and related objects; a missing CRD means an empty list (C7)."""

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
from kube.nodes import NODES_PATH, is_labelled_for
from kube.paths import Object, build_node_name_selector, build_pods_on_node_query
from kube.pods import Pod, get_controller, get_uid, is_daemonset_pod
from kube.trimming import POD_LIST_DECODER, trim_pod_for_drain

log = logging.getLogger("functions")


async def list_maintenances(
    api: Api, node_name: str | None = None, resource_version: str | None = None
) -> list[Object]:
    """Return the NodeMaintenance objects of all API groups, oldest first.

    `node_name` selects the objects that name this node; None selects all. `resource_version` has the same meaning as in
    `Api.list`: None reads the newest state, "0" the API server's cache.
    """
    found = await gather_all(
        *(list_maintenances_of_group(api, group, node_name, resource_version) for group in GROUPS.values())
    )
    return sort_by_age(item for items in found for item in items)


async def list_undeleted_maintenances(api: Api, node_name: str, resource_version: str | None = None) -> list[Object]:
    """Return the NodeMaintenance objects that name `node_name` and are not being deleted, oldest first.

    An API group whose list request is rejected is skipped. Raises the same errors as `collect_group_lists`.
    """
    reads = (list_maintenances_of_group(api, group, node_name, resource_version) for group in GROUPS.values())
    lists = collect_group_lists(await asyncio.gather(*reads, return_exceptions=True))
    return sort_by_age(item for items in lists for item in items or [] if not is_deleting(item))


def collect_group_lists(results: Iterable[list[Object] | BaseException]) -> list[list[Object] | None]:
    """Return the list of each API group, with None for a group whose request was rejected; rejections are logged.

    Raises `Unavailable` if a request got no response, because a partial result must not be taken for a complete one.
    Raises the first error if all requests were rejected.
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

    `holder_uid` is the holder's uid. The function queries one group after another, because a node has one holder, which
    is usually in the first group. If no group contains the holder, the function returns the NodeMaintenances of all
    groups. A group whose request is rejected is skipped. Raises the same errors as `collect_group_lists`.
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
    """Return one API group's objects, unsorted and filtered by `node_name` if given; empty if its CRD is not installed.

    A CRD installed by another product may not support our field selector. The function then filters the complete list.
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
    """Return whether the API server rejected a list or watch request because of its field selector."""
    return error.status == HTTPStatus.BAD_REQUEST


async def list_pods_on_node(api: Api, node_name: str, resource_version: str | None = None) -> ListResult:
    """Return the pods on a node, each reduced to the fields that a drain needs.

    The reduction saves memory, because many concurrent passes keep a list of pods. `resource_version` has the same
    meaning as in `Api.list`. The request is not paged: etcd would serve the pages, and would read the pods of all nodes
    for each page.
    """
    path, field_selector = build_pods_on_node_query(node_name)
    pod_list = await api.list(
        path, field_selector=field_selector, resource_version=resource_version, decoder=POD_LIST_DECODER
    )
    return ListResult(
        [trim_pod_for_drain(pod) for pod in pod_list["items"]], str(pod_list["metadata"]["resourceVersion"])
    )


async def find_orphan_uids(api: Api, pods: Iterable[Pod]) -> set[str]:
    """Return the uids of the DaemonSet pods whose DaemonSet does not exist, so that nothing manages them (NMO-7)."""
    pods_by_path: dict[str, list[Pod]] = defaultdict(list)
    for pod in filter(is_daemonset_pod, pods):
        name = (get_controller(pod) or {})["name"]
        pods_by_path[f"/apis/apps/v1/namespaces/{pod['metadata']['namespace']}/daemonsets/{name}"].append(pod)
    daemonsets = await gather_all(*(get_or_none(api.get(path)) for path in pods_by_path))
    missing = [path for path, daemonset in zip(pods_by_path, daemonsets, strict=True) if daemonset is None]
    return {get_uid(pod) for path in missing for pod in pods_by_path[path]}


def sort_by_age(items: Iterable[Object]) -> list[Object]:
    """Return the objects sorted by age, oldest first."""
    return sorted(items, key=lambda item: (item["metadata"]["creationTimestamp"], item["metadata"]["uid"]))


async def read_control_plane(
    api: Api, excluded_uid: str, is_disruption: Callable[[Maintenance], bool]
) -> ControlPlaneSnapshot:
    """Return the current control plane, with the nodes that maintenances other than `excluded_uid` disrupt.

    `is_disruption` decides whether a maintenance is a disruption. A maintenance whose node still carries its label
    always counts, since that node stays cordoned until it is restored. The function lists maintenances per node,
    because even a large cluster has few control-plane nodes.
    """
    budgets = f"/apis/policy/v1/namespaces/{ETCD_NAMESPACE}/poddisruptionbudgets"
    reads = (api.list(NODES_PATH, label_selector=label) for label in CONTROL_PLANE_LABELS)
    *node_lists, current_guard, legacy_guard = await gather_all(
        *reads, *(get_or_none(api.get(f"{budgets}/{name}")) for name in GUARD_BUDGET_NAMES)
    )
    nodes = {node["metadata"]["name"]: node for node_list in node_lists for node in node_list["items"]}
    guards = [guard for guard in (current_guard, legacy_guard) if guard is not None]
    pods = (await api.list(f"/api/v1/namespaces/{ETCD_NAMESPACE}/pods"))["items"] if guards else []
    maintenances_by_node = await gather_all(*(list_maintenances(api, name) for name in nodes))
    maintained = {
        name
        for (name, node), items in zip(nodes.items(), maintenances_by_node, strict=True)
        for item in items
        if item["metadata"]["uid"] != excluded_uid
        and (is_disruption(item) or is_labelled_for(node, item["metadata"]["uid"]))
    }
    return ControlPlaneSnapshot(list(nodes.values()), maintained, guards, pods)
