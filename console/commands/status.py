"""`kubectl maintenance status [NODE]`: shows the nodes in maintenance, each drain's progress, and what blocks it.

For a single node it also shows the virtual machines, which it reads again after each change of the node's maintenance.
"""

from __future__ import annotations

from contextlib import aclosing, nullcontext
from datetime import datetime, timezone

import click
from rich.console import Group, RenderableType

from console.operations.descriptions import GONE, node_report, plain
from console.operations.maintenance_actions import machines_on, unknown
from console.operations.maintenance_watch import watched
from console.terminal.connection import with_api
from console.terminal.maintenance_display import details, line, overview
from console.terminal.escaping import escaped_all
from console.terminal.flags import OneNode
from console.terminal.vmi_display import machines
from console.terminal.options import cluster_options, output_option, watch_option
from console.terminal.output import live, show, show_json, show_json_line
from console.terminal.param_types import Name
from kube.client.api import Api, absent_ok
from kube.maintenance.lookup import maintenances
from kube.nodes import node_path
from kube.paths import Object


@click.command(cls=OneNode)
@click.argument("node", type=Name(), required=False, default="")
@watch_option
@output_option
@cluster_options
def status(node: str, watch: bool, output: str) -> None:
    """Show all maintenances, or NODE with its pending and blocked pods and what would unblock them.

    For NODE, the command also shows the virtual machines: whether each can be migrated, what a drain does with it, and
    its migration.

    \b
    Example:
      kubectl maintenance status
      kubectl maintenance status node-1 --watch
    """
    if watch:
        with_api(lambda api: _watch(api, node, output))
        return
    state = with_api(lambda api: _read(api, node))
    if output == "json":
        show_json(state)
    else:
        show(_render(state))


async def _read(api: Api, node: str) -> Object:
    """Return the current state. Raises `Refusal` for a node that does not exist and that no maintenance names."""
    state = await _state(api, node, await maintenances(api, node or None))
    if state.get("state") == GONE and not state["maintenances"]:
        raise unknown(node)
    return state


async def _state(api: Api, node: str, found: list[Object]) -> Object:
    """Return the JSON output: `{maintenances}`, and for one node also `{node, schedulable, state, virtualMachines}`.

    If the virtual machines cannot be read, `virtualMachinesUnknown` with the reason replaces `virtualMachines`.
    """
    items = [plain(item) for item in found]
    if not node:
        return {"maintenances": items}
    seen = await machines_on(api, node)
    told: Object = {"virtualMachinesUnknown": seen.unknown} if seen.unknown else {"virtualMachines": seen.reports}
    return {**node_report(node, await absent_ok(api.get(node_path(node)))), "maintenances": items, **told}


async def _watch(api: Api, node: str, output: str) -> None:
    screen = live(_render, _lines) if output == "table" else nullcontext(show_json_line)
    with screen as show_state:
        async with aclosing(watched(api, node or None)) as states:
            async for found in states:
                show_state(await _state(api, node, found))


def _render(state: Object) -> RenderableType:
    now, shown = datetime.now(timezone.utc), escaped_all(state)
    if "node" in shown:
        known = details(shown["node"], shown["state"], shown["maintenances"], now)
        return Group(known, *machines(shown.get("virtualMachines", []), shown.get("virtualMachinesUnknown", "")))
    return overview(shown["maintenances"], now)


def _lines(state: Object) -> str:
    return "\n".join(line(item) for item in escaped_all(state["maintenances"])) or "No maintenance."
