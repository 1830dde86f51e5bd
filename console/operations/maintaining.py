"""Beginning and ending a maintenance for a person: one set of rules for the command line and the web console."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import click

from console.operations.display import full_name, phase_word
from kube.door.api import Api, absent_ok
from kube.door.errors import Conflict, NotFound
from kube.maintenance.groups import Group
from kube.maintenance.lookup import maintenances
from kube.maintenance.objects import REQUESTER, is_deleting, node_name, path
from kube.nodes import is_cordoned, node_path
from kube.paths import Object


class Refusal(click.ClickException):
    """What is not done, and why: one line with a remedy on the command line, a page with `status` on the web.

    Attributes:
        status: the HTTP status that says the same.
        said: the sentence without the remedy, which is a command.
    """

    def __init__(self, status: HTTPStatus, said: str, remedy: str) -> None:
        super().__init__(f"{said}: {remedy}")
        self.status, self.said = status, said


async def known_node(api: Api, name: str) -> Object:
    """The node, or the refusal that says it is not there (NMO-19)."""
    try:
        return await api.get(node_path(name))
    except NotFound:
        raise unknown(name) from None


def unknown(name: str) -> Refusal:
    """The refusal of a node that is not there."""
    return Refusal(HTTPStatus.NOT_FOUND, f"there is no node {name}", "see kubectl get nodes")


async def create(api: Api, group: Group, node: str, name: str, reason: str, requester: str = "") -> Object:
    """Create the NodeMaintenance, or refuse: unknown node, in maintenance already, name taken (NMO-19, NMO-22)."""
    await known_node(api, node)
    await _refuse_second(api, node)
    spec = {"nodeName": node, **({"reason": reason} if reason else {})}
    metadata = {"name": name, **({"annotations": {REQUESTER: requester}} if requester else {})}
    body = {"apiVersion": group.api_version, "kind": "NodeMaintenance", "metadata": metadata, "spec": spec}
    try:
        return await api.create(group.path, body)
    except NotFound:
        kind = f"nodemaintenances.{group.api_version.split('/')[0]}"
        said = f"this cluster has no {kind}"
        raise Refusal(HTTPStatus.NOT_FOUND, said, "install that CRD, or use another --group") from None
    except Conflict:
        other = node_name(await api.get(f"{group.path}/{name}"))
        said = f"the NodeMaintenance {name} exists for {other}"
        raise Refusal(HTTPStatus.CONFLICT, said, "choose another --name") from None


async def _refuse_second(api: Api, node: str) -> None:
    for other in await maintenances(api, node):
        if is_deleting(other):
            said = f"{node} is being given back by {full_name(other)}"
            raise Refusal(HTTPStatus.CONFLICT, said, "try again when that is gone")
        said = f"{node} is in maintenance already by {full_name(other)} ({phase_word(other)})"
        raise Refusal(HTTPStatus.CONFLICT, said, f"kubectl maintenance stop {node}")


async def end(api: Api, node: str) -> list[Object]:
    """Request the deletion of every maintenance of the node, and return them; refuse where there is none (NMO-14)."""
    ended = await maintenances(api, node)
    if not ended:
        raise await _nothing_to_end(api, node)
    await asyncio.gather(*(_delete(api, item) for item in ended))
    return ended


async def _nothing_to_end(api: Api, node: str) -> Refusal:
    """Why there is no maintenance to end, and which command is meant instead (OSV-8)."""
    found = await absent_ok(api.get(node_path(node)))
    if found is None:
        said = f"there is no node {node}, and no maintenance for it"
        return Refusal(HTTPStatus.NOT_FOUND, said, "see kubectl get nodes")
    if is_cordoned(found):
        said = f"{node} is cordoned but not in maintenance"
        return Refusal(HTTPStatus.CONFLICT, said, f"kubectl maintenance uncordon {node}")
    return Refusal(HTTPStatus.CONFLICT, f"{node} is not in maintenance", "see kubectl maintenance status")


async def _delete(api: Api, item: Object) -> None:
    try:
        await api.delete(path(item), uid=item["metadata"]["uid"])
    except (NotFound, Conflict):
        return  # gone meanwhile; a conflict is another object under this name
