"""`kubectl maintenance status [NODE]`: shows the nodes in maintenance, each drain's progress, and what blocks it.

For a single node it also shows the virtual machines, which it re-reads whenever the node's maintenance changes.
"""

from __future__ import annotations

from contextlib import aclosing
from datetime import datetime, timezone

import click
from rich.console import Group, RenderableType

from console.operations.descriptions import STATE_GONE, build_node_report, strip_managed_fields
from console.operations.drain_preview import read_vmis
from console.operations.install_check import list_install_warnings, warn_if_stalled
from console.operations.install_problems import select_stalled
from console.operations.maintenance_actions import build_unknown_node_refusal, list_served_maintenances, watch_maintenances
from console.terminal.connection import run_with_api
from console.terminal.maintenance_display import format_line, render_details, render_overview, render_vmis
from console.terminal.options import (
    NonEmptyText,
    SingleNodeCommand,
    cluster_options,
    namespace_option,
    output_option,
    watch_option,
)
from console.terminal.output import escape_all, show, show_json, show_live, warn
from kube.client.api import Api, get_or_none
from kube.nodes import build_node_path
from kube.paths import Object


@click.command(cls=SingleNodeCommand)
@click.argument("node", type=NonEmptyText(), required=False, default="")
@watch_option
@namespace_option
@output_option
@cluster_options
def status(node: str, watch: bool, namespace: str, output: str) -> None:
    """Show all maintenances, or NODE with its pending and blocked pods and what would unblock them.

    For NODE, the command also shows the virtual machines: whether each can be migrated, what a drain does with it, and
    its migration.

    If a maintenance makes no progress for ten seconds, warnings name the functions, Triggers and sources that are not
    ready, and why.

    \b
    Example:
      kubectl maintenance status
      kubectl maintenance status node-1 --watch
    """
    if watch:
        run_with_api(lambda api: _watch_state(api, node, namespace, output))
        return
    state, warnings = run_with_api(lambda api: _read_state_and_warnings(api, node, namespace))
    show_json(state, output)
    if output == "table":
        show(_render_state(state))
    for warning in warnings:
        warn(warning)


async def _read_state_and_warnings(api: Api, node: str, namespace: str) -> tuple[Object, list[str]]:
    """Return the current state, and warnings about the install if a maintenance is stalled.

    Raises `Refusal` if the node does not exist and no maintenance names it.
    """
    state = await _build_state(api, node, await list_served_maintenances(api, node or None))
    if state.get("state") == STATE_GONE and not state["maintenances"]:
        raise build_unknown_node_refusal(node)
    stalled = select_stalled(state["maintenances"], datetime.now(timezone.utc))
    return state, await list_install_warnings(api, namespace, stalled)


async def _build_state(api: Api, node: str, found_maintenances: list[Object]) -> Object:
    """Return the JSON output: `{maintenances}`, and for one node also `{node, schedulable, state, virtualMachines}`.

    If the virtual machines cannot be read, `virtualMachinesUnknown` with the reason replaces `virtualMachines`.
    """
    items = [strip_managed_fields(maintenance) for maintenance in found_maintenances]
    if not node:
        return {"maintenances": items}
    vmis = await read_vmis(api, node)
    vmi_fields: Object = {"virtualMachinesUnknown": vmis.error} if vmis.error else {"virtualMachines": vmis.reports}
    node_report = build_node_report(node, await get_or_none(api.get(build_node_path(node))))
    return {**node_report, "maintenances": items, **vmi_fields}


async def _watch_state(api: Api, node: str, namespace: str, output: str) -> None:
    latest: list[Object] = []
    stall_warnings = warn_if_stalled(api, namespace, lambda: select_stalled(latest, datetime.now(timezone.utc)), warn)
    with show_live(_render_state, _format_lines, output) as show_state:
        async with aclosing(watch_maintenances(api, node or None)) as states, stall_warnings:
            async for maintenances in states:
                latest = maintenances
                show_state(await _build_state(api, node, maintenances))


def _render_state(state: Object) -> RenderableType:
    now, escaped = datetime.now(timezone.utc), escape_all(state)
    if "node" in escaped:
        details = render_details(escaped["node"], escaped["state"], escaped["maintenances"], now)
        vmis = render_vmis(escaped.get("virtualMachines", []), escaped.get("virtualMachinesUnknown", ""))
        return Group(details, *vmis)
    return render_overview(escaped["maintenances"], now)


def _format_lines(state: Object) -> str:
    return "\n".join(map(format_line, escape_all(state["maintenances"]))) or "No maintenances found."
