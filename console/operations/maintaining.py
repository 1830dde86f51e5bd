"""Create and delete NodeMaintenances by the same rules for the command line and the web console, and say before what
that does to the node's virtual machines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from console.operations.describing import full_name, kept, phase_word
from console.operations.errors import Refusal
from kube.door.api import Api, absent_ok
from kube.door.api_errors import ApiError, Conflict, Denied, NotFound
from kube.door.concurrent_requests import together
from kube.door.decoding import hearing
from kube.evictions import is_by_admission
from kube.maintenance.drain_flags import drain_of
from kube.maintenance.groups import Group
from kube.maintenance.lookup import maintenances
from kube.maintenance.objects import REQUESTER, is_deleting, is_over, node_name, path, standing
from kube.nodes import is_cordoned, node_path
from kube.paths import Object
from kube.virtualization import outlook
from kube.virtualization.lookup import hosted, is_served
from kube.virtualization.machines import Item


class Machines(NamedTuple):
    """What is told of the virtual machines of a node (`kube.virtualization.outlook`), or why nothing is.

    Attributes:
        kubevirt: the object of a KubeVirt that moves them itself.
    """

    reports: list[Object]
    unknown: str = ""
    kubevirt: Item | None = None

    def warnings(self, group: Group) -> list[str]:
        """What a person should know of them before a maintenance of this group."""
        unheard = outlook.unheard(self.kubevirt, self.reports, group.drain_taint)
        return [*filter(None, (self.unknown, unheard)), *outlook.warnings(self.reports)]

    def without(self, machines: Collection[tuple[str, str]]) -> Machines:
        """The same without these, by namespace and name."""
        left = [report for report in self.reports if (report["namespace"], report["name"]) not in machines]
        return self._replace(reports=left)

    def moves(self, group: Group) -> str:
        """The line about those that will move without a break, "" for none."""
        return "" if outlook.unheard(self.kubevirt, self.reports, group.drain_taint) else outlook.moves(self.reports)


async def machines_on(api: Api, node: str) -> Machines:
    """Those of a node; one request where the cluster has none. What cannot be read keeps nobody from all else."""
    try:
        if not await is_served(api):
            return Machines([])
        found = await hosted(api, node)
    except ApiError as error:
        return Machines([], f"the virtual machines of {node} could not be read: {error.message}")
    return Machines(outlook.reports(found), kubevirt=found.kubevirt)


async def known_node(api: Api, name: str) -> Object:
    """The node, or the refusal that says it is not there (NMO-19)."""
    try:
        return await api.get(node_path(name))
    except NotFound:
        raise unknown(name) from None


def unknown(name: str) -> Refusal:
    """The refusal of a node that is not there."""
    return Refusal(HTTPStatus.NOT_FOUND, f"there is no node {name}", "see kubectl get nodes")


async def create(
    api: Api,
    group: Group,
    node: str,
    name: str,
    reason: str,
    requester: str = "",
    drain: Mapping[str, object] | None = None,
) -> Object:
    """Create the NodeMaintenance, or refuse: unknown node, in maintenance already, name taken (NMO-19, NMO-22).

    `drain` are the fields of `spec.drain`; those that are None are not set (DRN-1a).
    """
    await known_node(api, node)
    await _refuse_second(api, node)
    spec = {"nodeName": node, **({"reason": reason} if reason else {}), **drain_of(drain or {})}
    metadata = {"name": name, **({"annotations": {REQUESTER: requester}} if requester else {})}
    body = {"apiVersion": group.api_version, "kind": "NodeMaintenance", "metadata": metadata, "spec": spec}
    try:
        return await api.create(group.path, body)
    except NotFound:
        kind = f"nodemaintenances.{group.api_version.split('/')[0]}"
        message = f"this cluster has no {kind}"
        raise Refusal(HTTPStatus.NOT_FOUND, message, "install that CRD, or use another --group") from None
    except Conflict:
        raise await _taken(api, group, name) from None


async def foreseen(api: Api, group: Group, node: str) -> list[str]:
    """What the API server warns of before a node's maintenance is created; nothing is kept.

    Raises `Refusal` when admission would refuse it, or another one has the node's name, which it is to get.
    """
    metadata, spec = {"name": node}, {"nodeName": node}
    body = {"apiVersion": group.api_version, "kind": "NodeMaintenance", "metadata": metadata, "spec": spec}
    with hearing() as warnings:
        try:
            await api.dry_run().create(group.path, body)
        except Denied as error:
            if is_by_admission(error.message):
                words = error.message.partition("denied the request: ")[2]
                raise Refusal(HTTPStatus.CONFLICT, words, "") from None
            raise
        except Conflict:
            raise await _taken(api, group, node) from None
    return warnings


async def _taken(api: Api, group: Group, name: str) -> Refusal:
    """The refusal of a name that another NodeMaintenance has, be it one that is over."""
    other = await api.get(f"{group.path}/{name}")
    message = kept(other) if is_over(other) else f"the NodeMaintenance {name} exists for {node_name(other)}"
    return Refusal(HTTPStatus.CONFLICT, message, "choose another --name")


async def _refuse_second(api: Api, node: str) -> None:
    for other in standing(await maintenances(api, node)):
        if is_deleting(other):
            message = f"{node} is being given back by {full_name(other)}"
            raise Refusal(HTTPStatus.CONFLICT, message, "try again when that is gone")
        message = f"{node} is in maintenance already by {full_name(other)} ({phase_word(other)})"
        change, end = f"kubectl edit {full_name(other)}", f"kubectl maintenance stop {node}"
        raise Refusal(HTTPStatus.CONFLICT, message, f"{change} changes how it drains, {end} ends it")


async def end(api: Api, node: str) -> list[Object]:
    """Request the deletion of every maintenance of the node, and return them; refuse where there is none (NMO-14)."""
    ended = await to_end(api, node)
    await delete(api, ended)
    return ended


async def to_end(api: Api, node: str) -> list[Object]:
    """Every maintenance of the node that is not over; refuse where there is none."""
    found = standing(await maintenances(api, node))
    if not found:
        raise await _nothing_to_end(api, node)
    return found


async def delete(api: Api, items: Iterable[Object]) -> None:
    """Request the deletion of these objects, and of none that came in their place."""
    await together(*(_delete(api, item) for item in items))


async def _nothing_to_end(api: Api, node: str) -> Refusal:
    """Why there is no maintenance to end, and which command is meant instead (OSV-8)."""
    found = await absent_ok(api.get(node_path(node)))
    if found is None:
        message = f"there is no node {node}, and no maintenance for it"
        return Refusal(HTTPStatus.NOT_FOUND, message, "see kubectl get nodes")
    if is_cordoned(found):
        message = f"{node} is cordoned but not in maintenance"
        return Refusal(HTTPStatus.CONFLICT, message, f"kubectl maintenance uncordon {node}")
    return Refusal(HTTPStatus.CONFLICT, f"{node} is not in maintenance", "see kubectl maintenance status")


async def _delete(api: Api, item: Object) -> None:
    try:
        await api.delete(path(item), uid=item["metadata"]["uid"])
    except (NotFound, Conflict):
        return  # gone meanwhile; a conflict is another object under this name
