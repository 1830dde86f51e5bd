"""Formats maintenances and virtual machines for the terminal: tables, a node's details, and a line for a pipe.

The functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from console.operations.descriptions import (
    PHASE_CORDONING,
    PHASE_FAILING,
    PHASE_WAITING,
    describe_escalation,
    find_separate_error,
    format_age,
    get_phase_label,
    summarize_blockers,
)
from console.terminal.output import COLUMN_SPACING, create_table
from kube.maintenance.blocked_groups import BlockedGroup, group_blocked_pods
from kube.maintenance.objects import (
    FAILED,
    Maintenance,
    format_full_name,
    get_ender,
    get_node_name,
    get_requester,
    get_spec,
    get_status,
)
from kube.text_limits import format_count, truncate
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS

BAR_WIDTH = 20
BLOCKED_HEADINGS = ("BLOCKED", "WHY", "BUDGET", "HEALTHY/NEEDED", "SINCE", "WHAT UNBLOCKS IT")
OVERVIEW_COLUMNS = ("NODE", "PHASE", "PROGRESS", "PENDING", "BLOCKED", "AGE", "REASON")
WIDE_COLUMNS = ("MAINTENANCE", "REQUESTED BY")
MIN_REMEDY_WIDTH = 40
"""Minimum width of the remedy column; a narrower column would break words."""
MAX_NAMED_PODS = 5
"""Maximum number of pods with the same cause that the list format of `BlockedPodsView` names, except with `-o wide`."""
MAX_ROW_REASON_CHARACTERS, MAX_REASON_CHARACTERS = 60, 300
"""Maximum length of a reason in the table and in a node's details, in characters; JSON output has all of it."""
PHASE_COLORS = {
    **{"Running": "yellow", PHASE_CORDONING: "yellow", "Succeeded": "green"},
    **{"Failed": "red", PHASE_FAILING: "red"},
}
ERROR_VERBS = {FAILED: "failed", PHASE_FAILING: "fails", PHASE_WAITING: "waits"}
"""Phase label → verb before the error, for the phases in which the error explains why nothing happens."""
DRAIN_EFFECT_COLORS = {MOVES: "green", RESTARTS: "yellow", STOPS: "yellow", BLOCKS: "red"}


def render_bar(percent: int) -> Text:
    """Build a progress bar with its percentage."""
    filled = BAR_WIDTH * percent // 100
    return Text.assemble(("━" * filled, "green"), ("─" * (BAR_WIDTH - filled), "dim"), f" {percent:3d}%")


def format_line(maintenance: Maintenance) -> str:
    """Return a line for a pipe: node, phase, progress, remaining pods, and why the drain failed or is stuck."""
    status = get_status(maintenance)
    pending, blocked = len(status.get("pendingPods") or []), len(status.get("blockedPods") or [])
    progress = f"{get_phase_label(maintenance)} {status.get('drainProgress') or 0}%"
    reason = _get_error(maintenance) or _summarize_blocked_pods(maintenance)
    line = f"{get_node_name(maintenance)} {progress} {pending} pending, {blocked} blocked"
    return f"{line}: {reason}" if reason else line


def render_awaited_maintenances(maintenances: Sequence[Maintenance], now: datetime) -> RenderableType:
    """Build a table with the maintenances that the command waits for, and below it what blocks each drain."""
    reasons = ((maintenance, _summarize_blocked_pods(maintenance)) for maintenance in maintenances)
    lines = [
        Text(f"{format_full_name(maintenance)} waits: {reason}", "yellow") for maintenance, reason in reasons if reason
    ]
    return Group(render_overview(maintenances, now), *lines)


def render_overview(maintenances: Sequence[Maintenance], now: datetime, *, is_wide: bool = False) -> RenderableType:
    """Build a table with one row per maintenance, and below it one line per error.

    A wide table also has the name of each maintenance, and the user who requested it.
    """
    if not maintenances:
        return Text("No maintenances found.")
    wide_columns = WIDE_COLUMNS if is_wide else ()
    table, errors = create_table(*OVERVIEW_COLUMNS, *wide_columns), []
    for maintenance in maintenances:
        status, phase = get_status(maintenance), get_phase_label(maintenance)
        table.add_row(
            get_node_name(maintenance),
            Text(phase, PHASE_COLORS.get(phase, "")),
            render_bar(status.get("drainProgress") or 0),
            str(len(status.get("pendingPods") or [])),
            str(len(status.get("blockedPods") or [])),
            format_age(maintenance["metadata"]["creationTimestamp"], now),
            Text(_truncate_reason(maintenance, MAX_ROW_REASON_CHARACTERS)),
            *(_build_wide_cells(maintenance) if is_wide else ()),
        )
        if error := _get_error(maintenance):
            outcome = ERROR_VERBS[phase]
            errors.append(Text(f"{format_full_name(maintenance)} {outcome}: {error}", "red"))
    return Group(table, *errors)


def _build_wide_cells(maintenance: Maintenance) -> tuple[Text, Text]:
    return Text(format_full_name(maintenance)), Text(get_requester(maintenance))


def _get_error(maintenance: Maintenance) -> str:
    """Return the error of a maintenance that failed, cannot start or cannot continue, or "" for any other."""
    has_stopped = get_phase_label(maintenance) in ERROR_VERBS
    return str(get_status(maintenance).get("lastError") or "") if has_stopped else ""


def _summarize_blocked_pods(maintenance: Maintenance) -> str:
    """Return a sentence about the blocked pods, or "" if no pod is blocked."""
    status = get_status(maintenance)
    return summarize_blockers(status) if status.get("blockedPods") else ""


def render_details(
    node: str, state: str, maintenances: Sequence[Maintenance], now: datetime, *, is_wide: bool = False
) -> RenderableType:
    """Build the view of one node: its state, then every maintenance that names it.

    A wide view names each blocked pod.
    """
    head = Text(f"Node {node}: {state}")
    if not maintenances:
        return Group(head, Text("No maintenances found."))
    parts = (_render_maintenance(maintenance, now, is_wide=is_wide) for maintenance in maintenances)
    return Group(head, *chain.from_iterable(parts))


def _render_maintenance(maintenance: Maintenance, now: datetime, *, is_wide: bool) -> list[RenderableType]:
    status = get_status(maintenance)
    reason = _truncate_reason(maintenance, MAX_REASON_CHARACTERS)
    parts: list[RenderableType] = [
        Text(""),
        Text(f"{format_full_name(maintenance)}{f': {reason}' if reason else ''}", "bold"),
        Text.assemble(
            f"{get_phase_label(maintenance)}  ",
            render_bar(status.get("drainProgress") or 0),
            f"  {_format_counts(maintenance, now)}",
        ),
    ]
    if users := _format_users(maintenance):
        parts.append(Text(users))
    if text := describe_escalation(maintenance, now):
        parts.append(Text(text, "yellow"))
    if error := find_separate_error(status):
        parts.append(Text(f"Last error: {error}", "red"))
    if status.get("blockedPods"):
        groups = group_blocked_pods(status["blockedPods"], format_full_name(maintenance))
        parts += [Text(""), BlockedPodsView(groups, now, is_wide=is_wide)]
    parts += _render_pending(status)
    return parts


def _format_users(maintenance: Maintenance) -> str:
    """Return who requested and who ended the maintenance, as far as known."""
    requester, ender = get_requester(maintenance), get_ender(maintenance)
    users = (requester and f"Requested by {requester}", ender and f"ended by {ender}")
    return "; ".join(filter(None, users))


def _truncate_reason(maintenance: Maintenance, max_characters: int) -> str:
    return truncate(str(get_spec(maintenance).get("reason") or ""), max_characters)


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
    """The blocked pods by cause, drawn as a table if the terminal is wide enough, otherwise as a few lines per cause.

    A table wider than the terminal would wrap names and commands, so that users could not copy them. With `is_wide`, it
    is a list that names each pod.
    """

    def __init__(self, groups: Sequence[BlockedGroup], now: datetime, *, is_wide: bool) -> None:
        self._groups, self._is_wide = groups, is_wide
        self._rows = [_build_blocked_row(group, now) for group in self._groups]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw a table or a list, depending on the available width."""
        widths = (max(map(cell_len, column)) for column in zip(BLOCKED_HEADINGS[:-1], *self._rows, strict=True))
        commands = [str(item) for group in self._groups for item in group.remedies if item.command]
        remedy_width = max([MIN_REMEDY_WIDTH, *map(cell_len, commands)])
        table_width = sum(width + COLUMN_SPACING for width in widths) + remedy_width
        has_table = table_width <= options.max_width and not self._is_wide
        yield self._render_table() if has_table else self._render_list()

    def _render_table(self) -> Table:
        table = create_table(*BLOCKED_HEADINGS)
        for column in table.columns[:-1]:
            column.no_wrap = True
        for group, cells in zip(self._groups, self._rows, strict=True):
            table.add_row(*cells, Text("\n".join(group.list_remedies())))
        return table

    def _render_list(self) -> Group:
        pairs = zip(self._groups, self._rows, strict=True)
        max_named = max(len(group.pods) for group in self._groups) if self._is_wide else MAX_NAMED_PODS
        parts = (part for group, row in pairs for part in _render_blocked_group(group, row, max_named))
        return Group(Text(BLOCKED_HEADINGS[0], "bold"), *parts)


def _build_blocked_row(group: BlockedGroup, now: datetime) -> tuple[str, ...]:
    """Return the cells of a cause's row, without the remedies."""
    since = format_age(group.since, now) if group.since else ""
    return group.format_pods(), group.reason, group.budget, group.counts, since


def _render_blocked_group(group: BlockedGroup, row: Sequence[str], max_named: int) -> Iterator[RenderableType]:
    """Yield the first pods and, indented below them, why they are blocked and what unblocks them."""
    _, reason, budget, counts, since = row
    details = (reason, budget and f"under {budget}", counts and f"{counts} healthy/needed", since and f"for {since}")
    yield from map(Text, group.pods[:max_named])
    if len(group.pods) > max_named:
        yield Text(f"and {len(group.pods) - max_named} more")
    yield Padding(Text(", ".join(filter(None, details))), (0, 0, 0, 2))
    for remedy, line in zip(group.advice, group.list_remedies(), strict=True):
        yield Padding(Text(f"{remedy.text}:" if remedy.command else line), (0, 0, 0, 2))
        if remedy.command:
            yield Padding(Text(line.removeprefix(f"{remedy.text}: ")), (0, 0, 0, 4))


def render_vmis(reports: Sequence[Mapping[str, Any]], read_error: str) -> list[RenderableType]:
    """Build an empty line and a table with a row per report (`kube.virtualization.drain_forecast.build_vmi_reports`).

    Without reports, return an empty list. If `read_error` is not empty, that text replaces the table.
    """
    if read_error:
        return [Text(""), Text(read_error, "red")]
    if not reports:
        return []
    table = create_table(
        "VIRTUAL MACHINE", "PHASE", "EVICTION", "RUN STRATEGY", "MIGRATABLE", "DRAIN EFFECT", "MIGRATION"
    )
    for report in reports:
        table.add_row(
            f"{report['namespace']}/{report['name']}",
            report["phase"],
            report["evictionStrategy"] or "–",
            report["runStrategy"] or "–",
            Text("yes" if report["migratable"] else f"no: {report['unable']}"),
            Text.assemble((report["drain"], DRAIN_EFFECT_COLORS[report["drain"]]), f": {report['why']}"),
            Text(_format_migration(report["migration"])),
        )
    return [Text(""), table]


def _format_migration(migration: Mapping[str, str] | None) -> str:
    if migration is None:
        return ""
    target = f" to {migration['target']}" if migration["target"] else ""
    return f"{migration['phase']}{target}: {migration['name']}"
