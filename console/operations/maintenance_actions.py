"""Creates and deletes NodeMaintenances, by the same rules for the command line and the web console.

The module also previews what a maintenance does to the node's virtual machines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from console.operations.descriptions import full_name, kept, phase_word
from console.operations.errors import Refusal
from kube.client.api import Api, absent_ok
from kube.client.api_errors import ApiError, Conflict, Denied, NotFound
from kube.client.concurrent_requests import together
from kube.client.decoding import hearing
from kube.evictions import is_by_admission
from kube.maintenance.drain_flags import drain_of
from kube.maintenance.groups import Group
from kube.maintenance.lookup import maintenances
from kube.maintenance.objects import REQUESTER, is_deleting, is_over, node_name, path, standing
from kube.nodes import is_cordoned, node_path
from kube.paths import Object
from kube.virtualization import drain_forecast
from kube.virtualization.lookup import hosted, is_served
from kube.virtualization.vmis import Item


class Machines(NamedTuple):
    """The reports on a node's virtual machines (`kube.virtualization.drain_forecast`), or why they could not be read.

    Attributes:
        kubevirt: The KubeVirt object, if that KubeVirt migrates the virtual machines itself.
    """

    reports: list[Object]
    unknown: str = ""
    kubevirt: Item | None = None

    def warnings(self, group: Group) -> list[str]:
        """Return the warnings about the virtual machines before a maintenance of this API group."""
        unheard = drain_forecast.unheard(self.kubevirt, self.reports, group.drain_taint)
        return [*filter(None, (self.unknown, unheard)), *drain_forecast.warnings(self.reports)]

    def without(self, machines: Collection[tuple[str, str]]) -> Machines:
        """Return a copy without these virtual machines, which are named by namespace and name."""
        left = [report for report in self.reports if (report["namespace"], report["name"]) not in machines]
        return self._replace(reports=left)

    def moves(self, group: Group) -> str:
        """Return a line about the virtual machines that will migrate without downtime, "" if there are none."""
        return "" if drain_forecast.unheard(self.kubevirt, self.reports, group.drain_taint) else drain_forecast.moves(self.reports)


async def machines_on(api: Api, node: str) -> Machines:
    """Return the virtual machines of a node; on a cluster without KubeVirt this costs one request.

    A failed read becomes `unknown` in the result, so that the caller can continue.
    """
    try:
        if not await is_served(api):
            return Machines([])
        found = await hosted(api, node)
    except ApiError as error:
        return Machines([], f"the virtual machines of {node} could not be read: {error.message}")
    return Machines(drain_forecast.reports(found), kubevirt=found.kubevirt)


async def known_node(api: Api, name: str) -> Object:
    """Return the node. Raises `Refusal` if it does not exist (NMO-19)."""
    try:
        return await api.get(node_path(name))
    except NotFound:
        raise unknown(name) from None


def unknown(name: str) -> Refusal:
    """Build the refusal for a node that does not exist."""
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
    """Create the NodeMaintenance.

    `drain` holds the fields of `spec.drain`; a field that is None stays unset (DRN-1a). Raises `Refusal` if the node
    does not exist or is already in maintenance, or if the name is taken (NMO-19, NMO-22).
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
    """Return the API server's warnings about a new maintenance of the node, from a dry run.

    Raises `Refusal` if admission would deny the maintenance, or if its name, which is the node's name, is taken.
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
    """Build the refusal for a name that another NodeMaintenance has, even a released one."""
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
    """Request deletion of all maintenances of the node, and return them. Raises `Refusal` if there is none (NMO-14)."""
    ended = await to_end(api, node)
    await delete(api, ended)
    return ended


async def to_end(api: Api, node: str) -> list[Object]:
    """Return every unreleased maintenance of the node. Raises `Refusal` if there is none."""
    found = standing(await maintenances(api, node))
    if not found:
        raise await _nothing_to_end(api, node)
    return found


async def delete(api: Api, items: Iterable[Object]) -> None:
    """Request the deletion of exactly these objects, and not of newer objects with the same names."""
    await together(*(_delete(api, item) for item in items))


async def _nothing_to_end(api: Api, node: str) -> Refusal:
    """Build the refusal for a node without a maintenance to end; its remedy names the right command (OSV-8)."""
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
        return  # already deleted; on a conflict, the name belongs to another object
