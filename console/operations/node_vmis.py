"""Reads the virtual machines on a node, and reports the effect of a drain on them (OSV-2, OSV-3)."""

from __future__ import annotations

from typing import NamedTuple

from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.maintenance.groups import ApiGroup
from kube.paths import Object
from kube.virtualization import drain_forecast
from kube.virtualization.lookup import is_vmi_kind_served, read_vmi_snapshot
from kube.virtualization.vmis import Resource


class NodeVmis(NamedTuple):
    """The reports on a node's virtual machines (`kube.virtualization.drain_forecast`), or the error of reading them.

    Attributes:
        kubevirt: The KubeVirt object, if KubeVirt itself migrates the virtual machines.
    """

    reports: list[Object]
    error: str = ""
    kubevirt: Resource | None = None

    def list_problems(self, group: ApiGroup) -> list[str]:
        """Return the read error, and a message if this group's drain taint does not trigger KubeVirt's migrations."""
        mismatch = drain_forecast.explain_taint_mismatch(self.kubevirt, self.reports, group.drain_taint)
        return list(filter(None, (self.error, mismatch)))


async def return_no_vmis(_node: str) -> NodeVmis:
    """Return no virtual machines, so that the caller treats virt-launcher pods like all other pods."""
    return NodeVmis([])


async def read_vmis(api: Api, node: str) -> NodeVmis:
    """Read the virtual machines on a node; on a cluster without KubeVirt, send only one request.

    An API error is returned in the result's `error`, so that the caller can continue.
    """
    try:
        if not await is_vmi_kind_served(api):
            return NodeVmis([])
        snapshot = await read_vmi_snapshot(api, node)
    except ApiError as error:
        return NodeVmis([], f'cannot read the virtual machines of node "{node}": {error.message}')
    return NodeVmis(drain_forecast.build_vmi_reports(snapshot), kubevirt=snapshot.kubevirt)
