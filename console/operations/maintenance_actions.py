"""Creates and deletes NodeMaintenances, by the same rules for the command line and the web console.

The module also previews what a maintenance does to the node's virtual machines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from console.operations.descriptions import explain_released_maintenance, format_full_name, get_phase_label
from console.operations.errors import Refusal
from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import ApiError, Conflict, Denied, NotFound, is_webhook_refusal
from kube.client.decoding import collect_warnings
from kube.maintenance.drain_flags import build_drain_spec
from kube.maintenance.groups import ApiGroup
from kube.maintenance.lookup import list_maintenances
from kube.maintenance.objects import (
    REQUESTER_ANNOTATION,
    build_path,
    get_node_name,
    is_deleting,
    is_released,
    select_unreleased,
)
from kube.nodes import build_node_path, is_cordoned
from kube.paths import Object
from kube.virtualization import drain_forecast
from kube.virtualization.lookup import are_vmis_served, read_vmi_snapshot
from kube.virtualization.vmis import Resource


class NodeVmis(NamedTuple):
    """The reports on a node's virtual machines (`kube.virtualization.drain_forecast`), or why they could not be read.

    Attributes:
        kubevirt: The KubeVirt object, if that KubeVirt migrates the virtual machines itself.
    """

    reports: list[Object]
    error: str = ""
    kubevirt: Resource | None = None

    def list_warnings(self, group: ApiGroup) -> list[str]:
        """Return warnings about the virtual machines, to show before a maintenance in this API group is created."""
        mismatch = drain_forecast.explain_taint_mismatch(self.kubevirt, self.reports, group.drain_taint)
        return [*filter(None, (self.error, mismatch)), *drain_forecast.build_warnings(self.reports)]

    def exclude(self, vmis: Collection[tuple[str, str]]) -> NodeVmis:
        """Return a copy without these virtual machines, given as (namespace, name)."""
        reports = [report for report in self.reports if (report["namespace"], report["name"]) not in vmis]
        return self._replace(reports=reports)

    def describe_moves(self, group: ApiGroup) -> str:
        """Return a line about the virtual machines that will migrate without downtime, or "" if there are none."""
        return (
            ""
            if drain_forecast.explain_taint_mismatch(self.kubevirt, self.reports, group.drain_taint)
            else drain_forecast.describe_moves(self.reports)
        )


async def read_vmis(api: Api, node: str) -> NodeVmis:
    """Return the virtual machines on a node; on a cluster without KubeVirt, this takes one request.

    A failed read becomes `error` in the result, so that the caller can continue.
    """
    try:
        if not await are_vmis_served(api):
            return NodeVmis([])
        snapshot = await read_vmi_snapshot(api, node)
    except ApiError as error:
        return NodeVmis([], f'cannot read the virtual machines of node "{node}": {error.message}')
    return NodeVmis(drain_forecast.build_vmi_reports(snapshot), kubevirt=snapshot.kubevirt)


async def get_node_or_refuse(api: Api, name: str) -> Object:
    """Return the node. Raises `Refusal` if it does not exist (NMO-19)."""
    try:
        return await api.get(build_node_path(name))
    except NotFound:
        raise build_unknown_node_refusal(name) from None


def build_unknown_node_refusal(name: str) -> Refusal:
    """Build the refusal for a node that does not exist."""
    return Refusal(HTTPStatus.NOT_FOUND, f'node "{name}" not found', "see kubectl get nodes")


async def create_maintenance(
    api: Api,
    group: ApiGroup,
    node: str,
    name: str,
    reason: str,
    requester: str = "",
    drain_options: Mapping[str, object] | None = None,
) -> Object:
    """Create the NodeMaintenance.

    `drain_options` contains the fields of `spec.drain`; a field that is None stays unset (DRN-1a). Raises `Refusal` if
    the node does not exist or is already in maintenance, or if the name is taken (NMO-19, NMO-22).
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


async def preview_creation(api: Api, group: ApiGroup, node: str) -> list[str]:
    """Return the API server's warnings about a new maintenance of the node, from a dry run.

    Raises `Refusal` if admission would deny the maintenance, or if its name, which is the node's name, is taken.
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
    """Build the refusal for a name that another NodeMaintenance already has, even if that one is released."""
    existing = await api.get(f"{group.path}/{name}")
    message = (
        explain_released_maintenance(existing)
        if is_released(existing)
        else f'NodeMaintenance "{name}" already exists for node "{get_node_name(existing)}"'
    )
    return Refusal(HTTPStatus.CONFLICT, message, "choose another --name")


async def _raise_if_in_maintenance(api: Api, node: str) -> None:
    for existing in select_unreleased(await list_maintenances(api, node)):
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
    ended = await list_maintenances_to_end(api, node)
    await delete_maintenances(api, ended)
    return ended


async def list_maintenances_to_end(api: Api, node: str) -> list[Object]:
    """Return all unreleased maintenances of the node. Raises `Refusal` if there are none."""
    maintenances = select_unreleased(await list_maintenances(api, node))
    if not maintenances:
        raise await _build_nothing_to_end_refusal(api, node)
    return maintenances


async def delete_maintenances(api: Api, maintenances: Iterable[Object]) -> None:
    """Request the deletion of exactly these objects, and not of newer objects with the same names."""
    await gather_all(*(_delete_maintenance(api, maintenance) for maintenance in maintenances))


async def _build_nothing_to_end_refusal(api: Api, node: str) -> Refusal:
    """Build the refusal for a node without a maintenance to end; its remedy names the right command (OSV-8)."""
    node_object = await get_or_none(api.get(build_node_path(node)))
    if node_object is None:
        message = f'node "{node}" not found, and no NodeMaintenance names it'
        return Refusal(HTTPStatus.NOT_FOUND, message, "see kubectl get nodes")
    if is_cordoned(node_object):
        message = f'node "{node}" is cordoned but not in maintenance'
        return Refusal(HTTPStatus.CONFLICT, message, f"run kubectl maintenance uncordon {node}")
    return Refusal(HTTPStatus.CONFLICT, f'node "{node}" is not in maintenance', "see kubectl maintenance status")


async def _delete_maintenance(api: Api, maintenance: Object) -> None:
    try:
        await api.delete(build_path(maintenance), uid=maintenance["metadata"]["uid"])
    except (NotFound, Conflict):
        return  # The object is already deleted; on a conflict, a newer object has its name.
