"""Reads a node's virtual machines with the caller's permissions, for the node's page and the confirmation dialog."""

from __future__ import annotations

from console.operations.drain_preview import NodeVmis, read_vmis
from console.web.callers import READ_VMS, Caller
from console.web.context import ConsoleContext
from kube.client.api_errors import Denied
from kube.maintenance.groups import ApiGroup
from kube.paths import Object
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS

DRAIN_EFFECT_TONES = {MOVES: "ok", RESTARTS: "off", STOPS: "off", BLOCKS: "bad"}
"""CSS class for each effect of a drain on a virtual machine."""


async def read_vmis_as_caller(caller: Caller, node: str) -> NodeVmis:
    """Return the virtual machines that the caller may see, or the missing permission as `error`."""
    try:
        await caller.require(READ_VMS)
    except Denied as error:
        return NodeVmis([], f'cannot show the virtual machines of node "{node}": {error.message}')
    return await read_vmis(await caller.get_api(), node)


async def preview_vmis(caller: Caller, node: str, group: ApiGroup) -> list[str]:
    """Preview the effect of a maintenance on the virtual machines: first warnings, then a line about migrations."""
    node_vmis = await read_vmis_as_caller(caller, node)
    return [*node_vmis.list_warnings(group), *filter(None, [node_vmis.describe_moves(group)])]


def build_template_values(context: ConsoleContext, node: str) -> Object:
    """Return the values for the page's template; `vmis` is None on a cluster without KubeVirt."""
    node_vmis = context.client.run(read_vmis_as_caller(context.get_caller(), node)) if context.has_vms() else None
    return {"vmis": node_vmis, "tones": DRAIN_EFFECT_TONES}
