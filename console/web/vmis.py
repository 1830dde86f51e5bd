"""The virtual machines of a node, for its page and for the confirmation dialog; read with the caller's permissions."""

from __future__ import annotations

from console.operations.maintenance_actions import Machines, machines_on
from console.web.callers import MACHINES_READ, Caller
from console.web.context import Context
from kube.client.api_errors import Denied
from kube.maintenance.groups import Group
from kube.paths import Object
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS

TONES = {MOVES: "ok", RESTARTS: "off", STOPS: "off", BLOCKS: "bad"}
"""CSS class for each effect of a drain on a virtual machine."""


async def seen(caller: Caller, node: str) -> Machines:
    """Return the virtual machines that the caller may see, or the missing permission as `unknown`."""
    try:
        await caller.require(MACHINES_READ)
    except Denied as error:
        return Machines([], f"the virtual machines of {node} are not shown: {error.message}")
    return await machines_on(await caller.door(), node)


async def foretold(caller: Caller, node: str, group: Group) -> list[str]:
    """Preview the effect of a maintenance on the virtual machines: first warnings, then those that migrate."""
    found = await seen(caller, node)
    return [*found.warnings(group), *filter(None, [found.moves(group)])]


def shown(context: Context, node: str) -> Object:
    """Return the data of the page's template; `machines` is None on a cluster without KubeVirt."""
    found = context.cluster.run(seen(context.caller(), node)) if context.has_machines() else None
    return {"machines": found, "tones": TONES}
