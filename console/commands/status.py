"""`kubectl maintenance status [NODE...]`: shows nodes in maintenance, each drain's progress, and what blocks the drain.

For a single node, the command also shows the virtual machines. With --watch, it reads them again whenever the node's
maintenance changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain, repeat

import click
from rich.console import Group, RenderableType
from rich.text import Text

from console.operations.budget_hints import BudgetHints, read_budget_hints
from console.operations.descriptions import STATE_GONE, build_node_report, strip_managed_fields
from console.operations.install_check import check_install_if_maintenance_stalls, list_install_warnings
from console.operations.install_problems import select_stalled
from console.operations.maintenance_actions import (
    build_unknown_node_refusal,
    list_served_maintenances,
    suggest_node,
    watch_maintenances,
)
from console.operations.next_steps import NextStep, suggest_node_steps, suggest_overview_steps
from console.operations.node_repairs import read_repair_notes
from console.operations.node_vmis import NodeVmis, read_vmis
from console.terminal.connection import run_with_api
from console.terminal.maintenance_display import (
    NO_HINTS,
    NO_NOTES,
    format_line,
    render_details,
    render_next_steps,
    render_overview,
    render_vmis,
)
from console.terminal.node_selection import NodeOutcomes, NodeSelection, node_selection_options, run_for_nodes
from console.terminal.options import cluster_options, namespace_option, object_output_option, watch_option
from console.terminal.output import TEXT_OUTPUTS, escape, escape_all, show, show_live, show_object, warn
from kube.client.api import Api, gather_all, get_or_none
from kube.maintenance.blocked_groups import Remedy
from kube.maintenance.objects import format_full_name, get_node_name
from kube.nodes import build_node_path
from kube.paths import Object


@dataclass(frozen=True)
class Display:
    """Display options of the command.

    Attributes:
        output: The output format.
        namespace: The namespace of the install, which is checked for problems.
        is_watching: Whether the command shows every change until Ctrl-C.
    """

    output: str
    namespace: str
    is_watching: bool

    @property
    def is_wide(self) -> bool:
        """Return whether tables have the additional columns of `-o wide`."""
        return self.output == "wide"

    def select_steps(self, steps: list[NextStep]) -> list[NextStep]:
        """Return the suggested next steps; if this command is already watching, omit the suggestions to watch."""
        return [step for step in steps if not (self.is_watching and step.is_watch)]


@click.command
@node_selection_options(has_all_option=False)
@watch_option
@namespace_option
@object_output_option
@cluster_options
def status(selection: NodeSelection, watch: bool, namespace: str, output: str) -> None:
    """Show all maintenances, or NODE with its pending and blocked pods and what would unblock them.

    The last lines name the next step, with a command that you can copy.

    For one NODE, the command also shows the virtual machines: whether each can be migrated, what a drain does with it,
    and its migration.

    If a maintenance makes no progress for ten seconds, warnings name the functions, Triggers and sources that are not
    ready, and the pods of the product and of Knative that no node accepts, and why.

    \b
    Example:
      kubectl maintenance status
      kubectl maintenance status node-1 --watch
      kubectl maintenance status -l pool=blue -o wide
    """
    display = Display(output, namespace, watch)
    if selection.is_empty:
        run_with_api(lambda api: _watch_all(api, None, display) if watch else _show_all_maintenances(api, display))
    elif watch:
        run_for_nodes(
            selection,
            lambda api, nodes: (
                _watch_node(api, nodes[0], display)
                if selection.is_one_node
                else _watch_nodes(api, nodes, selection, display)
            ),
        )
    else:
        _show_nodes(selection, display)


async def _show_all_maintenances(api: Api, display: Display) -> None:
    state = _build_overview(await list_served_maintenances(api))
    show_object(state, display.output, map(format_full_name, state["maintenances"]))
    if display.output in TEXT_OUTPUTS:
        show(_render_overview(state, display))
    await _warn_if_stalled(api, state["maintenances"], display)


def _show_nodes(selection: NodeSelection, display: Display) -> None:
    """Show the details of one named node, or one line per maintenance for several nodes."""
    outcomes = NodeOutcomes(selection)
    reads_vmis = selection.is_one_node or display.output not in (*TEXT_OUTPUTS, "name")

    async def read_node(api: Api, node: str, found: list[Object]) -> None:
        with outcomes.collect_error(node):
            of_node = [maintenance for maintenance in found if get_node_name(maintenance) == node]
            outcomes.reports[node] = await _build_known_node_state(api, node, of_node, reads_vmis=reads_vmis)

    async def read_node_states(api: Api, nodes: list[str]) -> None:
        found = await list_served_maintenances(api, nodes[0] if len(nodes) == 1 else None)
        await gather_all(*(read_node(api, node, found) for node in nodes))
        outcomes.reports = {node: outcomes.reports[node] for node in nodes if node in outcomes.reports}
        reports = list(outcomes.reports.values())
        if display.output in TEXT_OUTPUTS and reports:
            if selection.is_one_node:
                maintenances = reports[0]["maintenances"]
                hints, repairs = await gather_all(
                    read_budget_hints(api, maintenances, display.namespace),
                    read_repair_notes(api, maintenances, datetime.now(timezone.utc)),
                )
                show(_render_details(reports[0], display, hints, repairs))
            else:
                show(_render_nodes(reports, display))
        shown = [maintenance for report in reports for maintenance in report["maintenances"]]
        await _warn_if_stalled(api, shown, display)

    run_for_nodes(selection, read_node_states)
    outcomes.finish(display.output, lambda report: map(format_full_name, report["maintenances"]))


async def _warn_if_stalled(api: Api, maintenances: list[Object], display: Display) -> None:
    """Print warnings about problems of the install if one of the maintenances is stalled."""
    stalled = select_stalled(maintenances, datetime.now(timezone.utc))
    for warning in await list_install_warnings(api, display.namespace, stalled):
        warn(warning)


def _build_overview(maintenances: list[Object]) -> Object:
    """Return the JSON output for several nodes: `{maintenances}`, sorted by node."""
    return {"maintenances": list(map(strip_managed_fields, sorted(maintenances, key=get_node_name)))}


async def _build_node_state(api: Api, node: str, maintenances: list[Object], *, reads_vmis: bool = True) -> Object:
    """Return the JSON output for one node: `{node, schedulable, state, maintenances, virtualMachines}`.

    If the virtual machines cannot be read, `virtualMachinesUnknown` with the reason replaces `virtualMachines`.
    """
    node_report = build_node_report(node, await get_or_none(api.get(build_node_path(node))))
    vmis = await read_vmis(api, node) if reads_vmis else NodeVmis([])
    vmi_fields: Object = {"virtualMachinesUnknown": vmis.error} if vmis.error else {"virtualMachines": vmis.reports}
    return {**node_report, **_build_overview(maintenances), **vmi_fields}


async def _build_known_node_state(
    api: Api, node: str, maintenances: list[Object], *, reads_vmis: bool = True
) -> Object:
    """Return the JSON output for one node.

    Raises `Refusal` if the node does not exist and no maintenance names it. Its remedy names the command that shows the
    recorded events, because the node may have been deleted.
    """
    state = await _build_node_state(api, node, maintenances, reads_vmis=reads_vmis)
    if state["state"] == STATE_GONE and not maintenances:
        past = suggest_node_steps(node, [])[0].command
        raise build_unknown_node_refusal(node, f"{await suggest_node(api, node)}; its recorded events: {past}")
    return state


async def _watch_node(api: Api, node: str, display: Display) -> None:
    """Show the state of one node after every change, even after the node is deleted.

    Raises `Refusal` if the node does not exist at first and no maintenance names it.
    """
    builders = chain([_build_known_node_state], repeat(_build_node_state))
    await _watch_and_show(
        api,
        node,
        lambda found: next(builders)(api, node, found),
        lambda state: _render_details(state, display),
        display,
    )


async def _watch_nodes(api: Api, nodes: list[str], selection: NodeSelection, display: Display) -> None:
    """Show the state of these nodes' maintenances after every change.

    Raises `Refusal` if the user names a node that does not exist at first and that no maintenance names.
    """
    if selection.names:
        maintained = set(map(get_node_name, await list_served_maintenances(api)))
        unmaintained = [node for node in nodes if node not in maintained]
        await gather_all(*(_build_known_node_state(api, node, [], reads_vmis=False) for node in unmaintained))
    await _watch_all(api, nodes, display)


async def _watch_all(api: Api, nodes: list[str] | None, display: Display) -> None:
    """Show the state of all maintenances, or of the maintenances of `nodes`, after every change."""

    async def build_state(maintenances: list[Object]) -> Object:
        return _build_overview(
            [maintenance for maintenance in maintenances if nodes is None or get_node_name(maintenance) in nodes]
        )

    await _watch_and_show(api, None, build_state, lambda state: _render_overview(state, display), display)


async def _watch_and_show(
    api: Api,
    node: str | None,
    build_state: Callable[[list[Object]], Awaitable[Object]],
    render: Callable[[Object], RenderableType],
    display: Display,
) -> None:
    latest: list[Object] = []

    def list_stalled_maintenances() -> list[Object]:
        return select_stalled(latest, datetime.now(timezone.utc))

    format_lines = _format_names if display.output == "name" else LineFormatter().format_lines
    with show_live(render, format_lines, display.output) as show_state:
        async with (
            aclosing(watch_maintenances(api, node)) as updates,
            check_install_if_maintenance_stalls(api, display.namespace, list_stalled_maintenances, warn),
        ):
            async for maintenances in updates:
                state = await build_state(maintenances)
                latest[:] = state["maintenances"]
                show_state(state)


def _render_details(
    state: Object,
    display: Display,
    budget_hints: BudgetHints = NO_HINTS,
    repair_notes: Mapping[str, Remedy] = NO_NOTES,
) -> RenderableType:
    """Build the detailed view of one node: its maintenances, its virtual machines, and the suggested next steps."""
    escaped, now = escape_all(state), datetime.now(timezone.utc)
    maintenances = escaped["maintenances"]
    details = render_details(
        escaped["node"], escaped["state"], maintenances, now, budget_hints, repair_notes, is_wide=display.is_wide
    )
    vmis = render_vmis(escaped.get("virtualMachines", []), escaped.get("virtualMachinesUnknown", ""))
    steps = display.select_steps(suggest_node_steps(escaped["node"], maintenances))
    return Group(details, *vmis, *render_next_steps(steps))


def _render_overview(state: Object, display: Display) -> RenderableType:
    """Build the table of all maintenances, followed by the suggested next steps."""
    maintenances = escape_all(state["maintenances"])
    table = render_overview(maintenances, datetime.now(timezone.utc), is_wide=display.is_wide)
    return Group(table, *render_next_steps(display.select_steps(suggest_overview_steps(maintenances))))


def _render_nodes(reports: list[Object], display: Display) -> RenderableType:
    """Build a line for each node without a maintenance, followed by the table of the other nodes' maintenances."""
    reports = sorted(reports, key=lambda report: str(report["node"]))
    maintenances = [maintenance for report in reports for maintenance in report["maintenances"]]
    idle = [
        Text(f"Node {escape(report['node'])}: {report['state']}") for report in reports if not report["maintenances"]
    ]
    if not maintenances:
        return Group(*idle)
    return Group(*idle, _render_overview({"maintenances": maintenances}, display))


def _format_names(state: Object) -> str:
    return "\n".join(escape(format_full_name(maintenance)) for maintenance in state["maintenances"])


class LineFormatter:
    """Formatter of watched states for a pipe: one line per maintenance, and one line per deleted maintenance."""

    def __init__(self) -> None:
        self._known: dict[str, Object] = {}

    def format_lines(self, state: Object) -> str:
        """Return the lines for `state`, including lines for maintenances that were deleted since the last call."""
        current = {maintenance["metadata"]["uid"]: maintenance for maintenance in escape_all(state["maintenances"])}
        gone = [self._known[uid] for uid in self._known if uid not in current]
        self._known = current
        deleted = [f"{get_node_name(maintenance)} {format_full_name(maintenance)} deleted" for maintenance in gone]
        return "\n".join([*deleted, *map(format_line, current.values())]) or "No maintenances found."
