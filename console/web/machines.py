"""The virtual machines of a node, as its page and the window before its maintenance show them; read as the caller."""

from __future__ import annotations

from console.operations.maintaining import Machines, machines_on
from console.web.callers import MACHINES_READ, Caller
from console.web.context import Context
from kube.door.api_errors import Denied
from kube.maintenance.groups import Group
from kube.paths import Object
from kube.virtualization.outlook import BLOCKS, MOVES, RESTARTS, STOPS

TONES = {MOVES: "ok", RESTARTS: "off", STOPS: "off", BLOCKS: "bad"}
"""How it looks what a drain does with a machine."""


async def seen(caller: Caller, node: str) -> Machines:
    """Those that the caller sees; the right that he lacks in their place."""
    try:
        await caller.require(MACHINES_READ)
    except Denied as error:
        return Machines([], f"the virtual machines of {node} are not shown: {error.message}")
    return await machines_on(await caller.door(), node)


async def foretold(caller: Caller, node: str, group: Group) -> list[str]:
    """What becomes of them by a maintenance of this group: of those that are lost or hold it up, then that move."""
    found = await seen(caller, node)
    return [*found.warnings(group), *filter(None, [found.moves(group)])]


def shown(context: Context, node: str) -> Object:
    """What the node's page needs; `machines` is None on a cluster that has none."""
    found = context.cluster.run(seen(context.caller(), node)) if context.has_machines() else None
    return {"machines": found, "tones": TONES}
