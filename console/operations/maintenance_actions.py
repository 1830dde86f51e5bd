"""Creates, watches and deletes NodeMaintenances, for the command line and the web console."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from http import HTTPStatus

from console.operations.descriptions import (
    explain_released_maintenance,
    get_phase_label,
    suggest_similar,
)
from console.operations.errors import OperationError, Refusal
from kube.client.access_reviews import whoami
from kube.client.api import METADATA_ONLY, Api, gather_all, get_or_none
from kube.client.api_errors import ApiError, Conflict, Denied, NotFound, Rejected, is_webhook_refusal
from kube.client.decoding import collect_warnings
from kube.client.list_watch import Change, follow, merge_streams
from kube.maintenance.drain_flags import build_drain_spec
from kube.maintenance.groups import GROUPS, ApiGroup
from kube.maintenance.lookup import is_selector_unsupported, list_maintenances_of_group, sort_by_age
from kube.maintenance.objects import (
    ENDER_ANNOTATION,
    REQUESTER_ANNOTATION,
    build_path,
    format_full_name,
    get_node_name,
    is_deleting,
    is_released,
    select_unreleased,
)
from kube.nodes import NODES_PATH, build_node_path, is_cordoned
from kube.paths import Object, build_node_name_selector

LIST_NODES_REMEDY = "see kubectl get nodes"


async def get_node_or_refuse(api: Api, name: str) -> Object:
    """Return the node. Raises `Refusal` if the node does not exist (NMO-19)."""
    try:
        return await api.get(build_node_path(name))
    except NotFound:
        raise build_unknown_node_refusal(name, await suggest_node(api, name)) from None


def build_unknown_node_refusal(name: str, remedy: str = LIST_NODES_REMEDY) -> Refusal:
    """Build the refusal for a node that does not exist."""
    return Refusal(HTTPStatus.NOT_FOUND, f'node "{name}" not found', remedy)


async def suggest_node(api: Api, name: str) -> str:
    """Return the remedy for an unknown node, with the most similar node name if the user may list nodes."""
    try:
        nodes = (await api.list(NODES_PATH, resource_version="0", accept=METADATA_ONLY))["items"] or []
    except ApiError:
        return LIST_NODES_REMEDY
    return suggest_similar(name, [node["metadata"]["name"] for node in nodes], LIST_NODES_REMEDY)


async def create_maintenance(
    api: Api,
    group: ApiGroup,
    node: str,
    name: str,
    reason: str,
    requester: str = "",
    drain_options: Mapping[str, object] | None = None,
) -> Object:
    """Create a NodeMaintenance.

    `drain_options` contains the fields of `spec.drain`; a field with the value None is omitted (DRN-1a). Raises
    `Refusal` if the node does not exist or is already in maintenance, or if the name is taken (NMO-19, NMO-22).
    """
    await get_node_or_refuse(api, node)
    await _raise_if_in_maintenance(api, node)
    spec = {"nodeName": node, **({"reason": reason} if reason else {}), **build_drain_spec(drain_options or {})}
    metadata = {"name": name, **({"annotations": {REQUESTER_ANNOTATION: requester}} if requester else {})}
    body = {"apiVersion": group.api_version, "kind": "NodeMaintenance", "metadata": metadata, "spec": spec}
    try:
        return await api.create(group.path, body)
    except NotFound:
        kind = f"nodemaintenances.{group.api_version.split('/')[0]}"
        message = f"the cluster does not serve {kind}"
        raise Refusal(HTTPStatus.NOT_FOUND, message, "install the CRD, or use another --group") from None
    except Conflict:
        raise await _build_name_taken_refusal(api, group, name) from None


async def preview_maintenance_creation(api: Api, group: ApiGroup, node: str) -> list[str]:
    """Send a dry-run request for a NodeMaintenance of the node, and return the API server's warnings.

    Raises `Refusal` if the admission webhook denies the request, or if the node's name is already the name of another
    NodeMaintenance.
    """
    metadata, spec = {"name": node}, {"nodeName": node}
    body = {"apiVersion": group.api_version, "kind": "NodeMaintenance", "metadata": metadata, "spec": spec}
    with collect_warnings() as warnings:
        try:
            await api.with_dry_run().create(group.path, body)
        except Denied as error:
            if is_webhook_refusal(error.message):
                reason = error.message.partition("denied the request: ")[2]
                raise Refusal(HTTPStatus.CONFLICT, reason, "") from None
            raise
        except Conflict:
            raise await _build_name_taken_refusal(api, group, node) from None
    return warnings


async def _build_name_taken_refusal(api: Api, group: ApiGroup, name: str) -> Refusal:
    """Build the refusal for a name that another NodeMaintenance, which may already be released, has."""
    existing = await api.get(f"{group.path}/{name}")
    message = (
        explain_released_maintenance(existing)
        if is_released(existing)
        else f'NodeMaintenance "{name}" already exists for node "{get_node_name(existing)}"'
    )
    return Refusal(HTTPStatus.CONFLICT, message, "choose another --name")


async def _raise_if_in_maintenance(api: Api, node: str) -> None:
    for existing in select_unreleased(await list_served_maintenances(api, node)):
        if is_deleting(existing):
            message = f'node "{node}" is not restored yet: {format_full_name(existing)} is being deleted'
            raise Refusal(HTTPStatus.CONFLICT, message, "try again when it is deleted")
        message = (
            f'node "{node}" is already in maintenance by {format_full_name(existing)} ({get_phase_label(existing)})'
        )
        change, end = f"kubectl edit {format_full_name(existing)}", f"kubectl maintenance stop {node}"
        remedy = f"to change its drain options, run {change}; to end it, run {end}"
        raise Refusal(HTTPStatus.CONFLICT, message, remedy)


async def end_maintenances(api: Api, node: str) -> list[Object]:
    """Request deletion of all the node's maintenances and return them. Raises `Refusal` if there are none (NMO-14)."""
    ended, user = await list_maintenances_to_end(api, node), ""
    with suppress(ApiError):  # A user whose name is unknown may end a maintenance, too.
        user = await whoami(api)
    await delete_maintenances(api, ended, user)
    return ended


async def list_maintenances_to_end(api: Api, node: str) -> list[Object]:
    """Return all unreleased maintenances of the node. Raises `Refusal` if there are none."""
    maintenances = select_unreleased(await list_served_maintenances(api, node))
    if not maintenances:
        raise await _build_nothing_to_end_refusal(api, node)
    return maintenances


async def delete_maintenances(api: Api, maintenances: Iterable[Object], user: str) -> None:
    """Delete these maintenances, but not newer objects with the same names.

    Before each deletion, the function tries to write `user` into an annotation, so that the journal contains who ended
    the maintenance. If the deletion fails, the function removes the annotation.
    """

    async def delete_maintenance(maintenance: Object) -> None:
        await _try_annotate_ender(api, maintenance, user)
        try:
            await api.delete(build_path(maintenance), uid=maintenance["metadata"]["uid"])
        except (NotFound, Conflict):
            pass  # The maintenance is already deleted; after a conflict, a newer object has the same name.
        except ApiError:
            await _try_annotate_ender(api, maintenance, None)
            raise

    await gather_all(*map(delete_maintenance, maintenances))


async def _try_annotate_ender(api: Api, maintenance: Object, user: str | None) -> None:
    """Set the annotation with the user who ends the maintenance, unless it is already being deleted.

    If `user` is None, the function removes the annotation. API errors are ignored, because they must not prevent the
    deletion.
    """
    if user == "" or is_deleting(maintenance):
        return
    metadata = {"uid": maintenance["metadata"]["uid"], "annotations": {ENDER_ANNOTATION: user}}
    with suppress(ApiError):
        await api.patch(build_path(maintenance), {"metadata": metadata})


async def _build_nothing_to_end_refusal(api: Api, node: str) -> Refusal:
    """Build the refusal to end the maintenance of a node without one, with the command to use instead (OSV-8)."""
    node_object = await get_or_none(api.get(build_node_path(node)))
    if node_object is None:
        message = f'node "{node}" not found, and no NodeMaintenance names it'
        return Refusal(HTTPStatus.NOT_FOUND, message, await suggest_node(api, node))
    if is_cordoned(node_object):
        message = f'node "{node}" is cordoned but not in maintenance'
        return Refusal(HTTPStatus.CONFLICT, message, f"run kubectl maintenance uncordon {node}")
    return Refusal(HTTPStatus.CONFLICT, f'node "{node}" is not in maintenance', "see kubectl maintenance status")


async def list_served_maintenances(api: Api, node: str | None = None) -> list[Object]:
    """Return the NodeMaintenances (all, or those of `node`) of all API groups whose CRD is installed, oldest first.

    The function first reads which API groups are served, because for other groups the API server may respond with 403
    instead of 404.
    """
    groups = await find_served_groups(api)
    found = await gather_all(*(list_maintenances_of_group(api, group, node) for group in groups))
    return sort_by_age(maintenance for maintenances in found for maintenance in maintenances)


async def find_served_groups(api: Api) -> list[ApiGroup]:
    """Return the API groups whose NodeMaintenance CRD is installed."""
    responses = await gather_all(*(get_or_none(api.get(f"/apis/{version}")) for version in GROUPS))
    return [
        group
        for group, response in zip(GROUPS.values(), responses, strict=True)
        if any(resource["name"] == "nodemaintenances" for resource in (response or {}).get("resources") or [])
    ]


async def list_served_groups(api: Api) -> list[ApiGroup]:
    """Return the API groups whose NodeMaintenance CRD is installed. Raises `OperationError` if there are none."""
    served = await find_served_groups(api)
    if not served:
        raise OperationError("the cluster does not serve NodeMaintenances", "install the CRDs first")
    return served


async def watch_maintenances(api: Api, node: str | None = None) -> AsyncGenerator[list[Object], None]:
    """Yield all NodeMaintenances (or those of `node`), oldest first, after the initial lists and after every change."""
    streams = [_follow_group(api, group, node) for group in await list_served_groups(api)]
    async with aclosing(collect_watched_objects(*streams)) as states:
        async for objects in states:
            yield sorted(objects, key=lambda maintenance: maintenance["metadata"]["creationTimestamp"])


async def collect_watched_objects(*streams: AsyncGenerator[Change, None]) -> AsyncGenerator[list[Object], None]:
    """Yield the current objects of all watch streams, once after all initial lists and then after every change."""
    unsynced = set(range(len(streams)))
    objects_by_uid: dict[str, Object] = {}
    async with aclosing(merge_streams(*streams)) as changes:
        async for stream_index, change in changes:
            if change.change_type == "SYNCED":
                unsynced.discard(stream_index)
            elif change.change_type == "DELETED":
                objects_by_uid.pop(change.object["metadata"]["uid"], None)
            else:
                objects_by_uid[change.object["metadata"]["uid"]] = change.object
            if not unsynced:
                yield list(objects_by_uid.values())


async def _follow_group(api: Api, group: ApiGroup, node: str | None) -> AsyncGenerator[Change, None]:
    """Yield the changes to NodeMaintenances in one API group, or only to those of `node`.

    If the CRD comes from another product, it may not support the field selector `spec.nodeName`. The generator then
    watches all objects, and skips those of other nodes.
    """
    fields = "" if node is None else build_node_name_selector(node)  # All API groups have the field `spec.nodeName`.
    try:
        async with aclosing(follow(api, group.path, field_selector=fields)) as changes:
            async for change in changes:
                yield change
    except Rejected as error:
        if node is None or not is_selector_unsupported(error):
            raise
        async with aclosing(follow(api, group.path)) as changes:
            async for change in changes:
                if change.change_type == "SYNCED" or get_node_name(change.object) == node:
                    yield change
