"""Formats maintenances for the terminal: a table, a node's details, and a line for a pipe. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from console.operations.descriptions import (
    PHASE_WAITING,
    format_age,
    format_full_name,
    get_phase_label,
    suggest_remedy,
    summarize_blockers,
)
from kube.maintenance.objects import FAILED, Maintenance, get_node_name, get_spec, get_status
from kube.text_limits import format_count

BAR_WIDTH = 20
BLOCKED_HEADINGS = ("BLOCKED", "WHY", "BUDGET", "HEALTHY/NEEDED", "SINCE", "WHAT UNBLOCKS IT")
COMMAND_PREFIX = "kubectl "
"""Start of a command within a remedy; the list format of `BlockedPodsView` prints the command on its own line."""
COLUMN_SPACING, MIN_REMEDY_WIDTH = 3, 40
"""Spaces between two table columns, and minimum width of the remedy column; a narrower column would break words."""
PHASE_COLORS = {"Running": "yellow", "Succeeded": "green", "Failed": "red"}


def render_bar(percent: int) -> Text:
    """Build a progress bar with its percentage."""
    filled = BAR_WIDTH * percent // 100
    return Text.assemble(("━" * filled, "green"), ("─" * (BAR_WIDTH - filled), "dim"), f" {percent:3d}%")


def format_line(maintenance: Maintenance) -> str:
    """Return a line for a pipe: node, phase, progress, remaining pods, and why the drain failed or is stuck."""
    status = get_status(maintenance)
    blocked = len(status.get("blockedPods") or [])
    counts = f"{len(status.get('pendingPods') or [])} pending, {blocked} blocked"
    progress = f"{get_phase_label(maintenance)} {status.get('drainProgress') or 0}%"
    return (
        f"{get_node_name(maintenance)} {progress} {counts}{_format_error(maintenance) or _format_blockers(maintenance)}"
    )


def render_awaited_maintenance(maintenance: Maintenance, now: datetime) -> RenderableType:
    """Build a table with the maintenance that the command waits for, and below it what blocks the drain."""
    reason = _format_blockers(maintenance)
    blocker_lines = [Text(f"{format_full_name(maintenance)} waits{reason}", "yellow")] if reason else []
    return Group(render_overview([maintenance], now), *blocker_lines)


def render_overview(maintenances: Sequence[Maintenance], now: datetime) -> RenderableType:
    """Build a table with one row per maintenance, and below it one line per error."""
    if not maintenances:
        return Text("No maintenances found.")
    table = create_table("NODE", "PHASE", "PROGRESS", "PENDING", "BLOCKED", "AGE", "REASON")
    for maintenance in maintenances:
        status = get_status(maintenance)
        phase = get_phase_label(maintenance)
        table.add_row(
            get_node_name(maintenance),
            Text(phase, PHASE_COLORS.get(phase, "")),
            render_bar(status.get("drainProgress") or 0),
            str(len(status.get("pendingPods") or [])),
            str(len(status.get("blockedPods") or [])),
            format_age(maintenance["metadata"]["creationTimestamp"], now),
            Text(get_spec(maintenance).get("reason") or ""),
        )
    errors = [
        Text(f"{format_full_name(maintenance)} {_get_failed_or_waits(maintenance)}{_format_error(maintenance)}", "red")
        for maintenance in maintenances
        if _format_error(maintenance)
    ]
    return Group(table, *errors)


def _get_failed_or_waits(maintenance: Maintenance) -> str:
    return "failed" if get_phase_label(maintenance) == FAILED else "waits"


def _format_error(maintenance: Maintenance) -> str:
    """Return `: ` and the error of a maintenance that failed or cannot start, or "" for any other maintenance."""
    error = get_status(maintenance).get("lastError")
    return (
        f": {error}"
        if get_phase_label(maintenance) == FAILED or (get_phase_label(maintenance) == PHASE_WAITING and error)
        else ""
    )


def _format_blockers(maintenance: Maintenance) -> str:
    """Return `: ` and a summary of the blocked pods, or "" if no pod is blocked."""
    status = get_status(maintenance)
    return f": {summarize_blockers(status)}" if status.get("blockedPods") else ""


def render_details(node: str, state: str, maintenances: Sequence[Maintenance], now: datetime) -> RenderableType:
    """Build the view of one node: its state, then every maintenance that names it."""
    head = Text(f"Node {node}: {state}")
    if not maintenances:
        return Group(head, Text("No maintenances found."))
    return Group(head, *(part for maintenance in maintenances for part in _render_maintenance(maintenance, now)))


def _render_maintenance(maintenance: Maintenance, now: datetime) -> list[RenderableType]:
    status = get_status(maintenance)
    reason = get_spec(maintenance).get("reason")
    parts: list[RenderableType] = [
        Text(""),
        Text(f"{format_full_name(maintenance)}{f': {reason}' if reason else ''}", "bold"),
        Text.assemble(
            f"{get_phase_label(maintenance)}  ",
            render_bar(status.get("drainProgress") or 0),
            f"  {_format_counts(maintenance, now)}",
        ),
    ]
    if status.get("lastError"):
        parts.append(Text(f"Last error: {status['lastError']}", "red"))
    if status.get("blockedPods"):
        parts += [Text(""), BlockedPodsView(status["blockedPods"], now)]
    parts += _render_pending(status)
    return parts


def _format_counts(maintenance: Maintenance, now: datetime) -> str:
    status = get_status(maintenance)
    if "evictionPods" not in status:
        return "not started yet"
    pending = len(status.get("pendingPods") or [])
    since = format_age(maintenance["metadata"]["creationTimestamp"], now)
    return f"{pending} of {format_count(status['evictionPods'], 'pod')} left, created {since} ago"


def _render_pending(status: Mapping[str, Any]) -> list[RenderableType]:
    """Build the list of pending pods that are not in the table of blocked pods."""
    blocked = {(pod["namespace"], pod["name"]) for pod in status.get("blockedPods") or []}
    names = [(pod["namespace"], pod["name"]) for pod in status.get("pendingPodsRefs") or []]
    unblocked = [f"  {namespace}/{name}" for namespace, name in names if (namespace, name) not in blocked]
    return [Text(""), Text("PENDING"), *map(Text, unblocked)] if unblocked else []


class BlockedPodsView:
    """The blocked pods, drawn as a table if the terminal is wide enough, otherwise as a few lines per pod.

    A table wider than the terminal would wrap names and commands, so that users could not copy them.
    """

    def __init__(self, blocked_pods: Sequence[Mapping[str, Any]], now: datetime) -> None:
        self._rows = [_build_blocked_row(blocked_pod, now) for blocked_pod in blocked_pods]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw a table or a list, depending on the available width."""
        widths = (max(map(cell_len, column)) for column in zip(BLOCKED_HEADINGS, *self._rows, strict=True))
        *other_widths, _remedy_width = (width + COLUMN_SPACING for width in widths)
        yield self._render_table() if sum(other_widths) + MIN_REMEDY_WIDTH <= options.max_width else self._render_list()

    def _render_table(self) -> Table:
        table = create_table(*BLOCKED_HEADINGS)
        for column in table.columns[:-1]:
            column.no_wrap = True
        for *cells, unblocks in self._rows:
            table.add_row(*cells, Text(unblocks))
        return table

    def _render_list(self) -> Group:
        parts = (part for row in self._rows for part in _render_blocked_pod(row))
        return Group(Text(BLOCKED_HEADINGS[0], "bold"), *parts)


def _build_blocked_row(blocked_pod: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    counts = (
        f"{blocked_pod['healthy']}/{blocked_pod['needed']}"
        if "healthy" in blocked_pod and "needed" in blocked_pod
        else ""
    )
    since = format_age(blocked_pod["since"], now) if blocked_pod.get("since") else ""
    pod = f"{blocked_pod['namespace']}/{blocked_pod['name']}"
    return pod, blocked_pod["reason"], blocked_pod.get("budget") or "", counts, since, suggest_remedy(blocked_pod)


def _render_blocked_pod(row: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the pod and, indented below it, why it is blocked and what unblocks it."""
    pod, reason, budget, counts, since, unblocks = row
    budget_text, counts_text = f"under {budget}" if budget else "", f"{counts} healthy/needed" if counts else ""
    details = (reason, budget_text, counts_text, f"for {since}" if since else "")
    yield Text(pod)
    yield Padding(Text(", ".join(filter(None, details))), (0, 0, 0, 2))
    remedy, _, command = unblocks.partition(f": {COMMAND_PREFIX}")
    yield Padding(Text(f"{remedy}:" if command else remedy), (0, 0, 0, 2))
    if command:
        yield Padding(Text(f"{COMMAND_PREFIX}{command}"), (0, 0, 0, 4))


def create_table(*columns: str) -> Table:
    """Build a table with these headings and without borders."""
    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_SPACING, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
