"""Lists NodeMaintenance objects of all API groups and related objects; a missing CRD means an empty list (C7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus

from kube.client.api import Api, absent_ok
from kube.client.api_errors import ApiError, NotFound, Rejected, Unavailable
from kube.client.concurrent_requests import together
from kube.client.paging import Listed, pages
from kube.maintenance.groups import GROUPS, Group
from kube.maintenance.objects import Maintenance, is_deleting, node_name
from kube.maintenance.quorum import CONTROL_PLANE, ETCD, GUARDS, ControlPlane
from kube.nodes import NODES, is_labelled_for
from kube.paths import Object, on_node, pods_on
from kube.trimming import PODS, drained_pod

log = logging.getLogger("functions")


async def maintenances(api: Api, node: str | None = None, version: str | None = None) -> list[Object]:
    """Return the NodeMaintenance objects of all API groups, oldest first.

    `node` selects the objects that name this node; None selects all. `version` as in `Api.list`: None for the newest
    state, "0" for the server's cache.
    """
    found = await together(*(of_group(api, group, node, version) for group in GROUPS.values()))
    return by_age(item for items in found for item in items)


async def undeleted(api: Api, node: str, version: str | None = None) -> list[Object]:
    """Return the objects that name `node` and are not being deleted, oldest first.

    An API group that refuses the request is skipped. Raises as `answered` does.
    """
    asked = (of_group(api, group, node, version) for group in GROUPS.values())
    lists = answered(await asyncio.gather(*asked, return_exceptions=True))
    return by_age(item for items in lists for item in items or [] if not is_deleting(item))


def answered(answers: Iterable[list[Object] | BaseException]) -> list[list[Object] | None]:
    """Return the list of each API group, with None for a group that refused the request; refusals are logged.

    Raises `Unavailable` if a group did not answer, because a partial result must not pass for a complete one. Raises
    the first error if all groups refused.
    """
    answers = list(answers)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in errors:
        if isinstance(error, Unavailable) or not isinstance(error, ApiError):
            raise error
        log.warning("the maintenances of a group could not be listed: %s", error.message)
    if len(errors) == len(answers):
        raise errors[0]
    return [None if isinstance(answer, BaseException) else answer for answer in answers]


async def of_holder(api: Api, node: str, holder: str, version: str | None = None) -> list[Object]:
    """Return the objects that name `node`, from the API group that contains the node's holder, oldest first.

    `holder` is the holder's uid. The function queries one group after another, because a node has one holder, which is
    mostly in the first group. If no group contains the holder, it returns the objects of all groups. A group that
    refuses the request is skipped. Raises as `answered` does.
    """
    answers: list[list[Object] | BaseException] = []
    for group in GROUPS.values():
        try:
            items = await of_group(api, group, node, version)
        except ApiError as error:
            answers.append(error)
            continue
        if any(item["metadata"]["uid"] == holder for item in items):
            return by_age(items)
        answers.append(items)
    return by_age(item for listed in answered(answers) for item in listed or [])


async def of_group(api: Api, group: Group, node: str | None = None, version: str | None = None) -> list[Object]:
    """Return one API group's objects, unsorted and filtered by `node` if given; empty if its CRD is not installed.

    A CRD installed by another product may not support our field selector. The function then filters the complete list.
    """
    try:
        items = (await pages(api, group.path, fields="" if node is None else on_node(node), version=version)).items
    except NotFound:
        return []
    except Rejected as error:
        if node is None or not knows_no_selector(error):
            raise
        listed = await pages(api, group.path, version=version)
        items = [item for item in listed.items if node_name(item) == node]
    return [{**item, "apiVersion": group.api_version, "kind": "NodeMaintenance"} for item in items]


def knows_no_selector(error: Rejected) -> bool:
    """Return whether the API server rejected a list or watch request because of its field selector."""
    return error.status == HTTPStatus.BAD_REQUEST


async def pods_on_node(api: Api, node: str, version: str | None = None) -> Listed:
    """Return the pods of a node, each reduced to the fields that the drain rules read.

    The reduction saves memory, because many concurrent passes hold such a list. `version` as in `Api.list`. The request
    is not paged: etcd would serve the pages, and would read the pods of all nodes for each.
    """
    path, fields = pods_on(node)
    answer = await api.list(path, fields=fields, version=version, decoder=PODS)
    return Listed([drained_pod(pod) for pod in answer["items"]], str(answer["metadata"]["resourceVersion"]))


def by_age(items: Iterable[Object]) -> list[Object]:
    """Return the objects sorted by age, oldest first."""
    return sorted(items, key=lambda item: (item["metadata"]["creationTimestamp"], item["metadata"]["uid"]))


async def control_plane(api: Api, uid: str, counts: Callable[[Maintenance], bool]) -> ControlPlane:
    """Return the current control plane, with the nodes that maintenances other than `uid` disrupt.

    `counts` decides whether a maintenance is a disruption. A maintenance whose node still carries its label always
    counts, since that node stays cordoned until it is restored. The function lists maintenances per node, because there
    are few control-plane nodes, whatever the size of the cluster.
    """
    budgets = f"/apis/policy/v1/namespaces/{ETCD}/poddisruptionbudgets"
    lists = (api.list(NODES, labels=label) for label in CONTROL_PLANE)
    *listed, new, old = await together(*lists, *(absent_ok(api.get(f"{budgets}/{name}")) for name in GUARDS))
    nodes = {node["metadata"]["name"]: node for found in listed for node in found["items"]}
    guards = [guard for guard in (new, old) if guard is not None]
    pods = (await api.list(f"/api/v1/namespaces/{ETCD}/pods"))["items"] if guards else []
    named = await together(*(maintenances(api, name) for name in nodes))
    maintained = {
        name
        for (name, node), items in zip(nodes.items(), named, strict=True)
        for item in items
        if item["metadata"]["uid"] != uid and (counts(item) or is_labelled_for(node, item["metadata"]["uid"]))
    }
    return ControlPlane(list(nodes.values()), maintained, guards, pods)
