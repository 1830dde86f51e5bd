"""Formats maintenances and virtual machines for the terminal: tables, a node's details, and lines for a pipe.

The functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from console.operations.budget_hints import BudgetHints
from console.operations.descriptions import (
    PHASE_CORDONING,
    PHASE_FAILING,
    PHASE_WAITING,
    describe_escalation,
    find_error_not_in_blocked_pods,
    format_age,
    get_phase_label,
    summarize_blockers,
)
from console.operations.next_steps import NextStep
from console.terminal.output import create_table
from kube.maintenance.blocked_groups import BlockedGroup, Remedy, group_blocked_pods
from kube.maintenance.objects import (
    FAILED,
    Maintenance,
    format_full_name,
    get_ending_user,
    get_node_name,
    get_requester,
    get_spec,
    get_status,
)
from kube.text_limits import format_count, truncate
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS

BAR_WIDTH, OVERVIEW_BAR_WIDTH = 20, 10
"""Width of the progress bar in a node's details, and in the overview table, which must fit into 80 columns."""
OVERVIEW_COLUMNS = ("NODE", "PHASE", "PROGRESS", "PENDING", "BLOCKED", "AGE", "REASON")
WIDE_COLUMNS = ("MAINTENANCE", "REQUESTED BY")
MAX_UNBROKEN_NODE_CHARACTERS, MAX_UNBROKEN_WIDE_CHARACTERS = 20, 30
"""Maximum length up to which a table does not wrap the names of nodes, or the text in `WIDE_COLUMNS`.

REASON takes the remaining width.
"""
MAX_NAMED_PODS = 5
"""Maximum number of blocked pods per cause that a node's details list, except with `-o wide`."""
MAX_ROW_REASON_CHARACTERS, MAX_REASON_CHARACTERS = 60, 300
"""Maximum length of a maintenance's reason in the table, and in a node's details; JSON output is not truncated."""
PHASE_COLORS = {
    **{"Running": "yellow", PHASE_CORDONING: "yellow", "Succeeded": "green"},
    **{"Failed": "red", PHASE_FAILING: "red"},
}
ERROR_VERBS = {FAILED: "failed", PHASE_FAILING: "fails", PHASE_WAITING: "waits"}
"""Map from a phase label to the verb that introduces `lastError` in the output.

Only in these phases does `lastError` explain why the maintenance makes no progress.
"""
NO_HINTS = BudgetHints({}, {})
NO_NOTES: Mapping[str, Remedy] = {}
DRAIN_EFFECT_COLORS = {MOVES: "green", RESTARTS: "yellow", STOPS: "yellow", BLOCKS: "red"}


def render_bar(percent: int, width: int = BAR_WIDTH) -> Text:
    """Build a progress bar followed by the percentage."""
    filled = width * percent // 100
    return Text.assemble(("━" * filled, "green"), ("─" * (width - filled), "dim"), f" {percent:3d}%")


def format_line(maintenance: Maintenance) -> str:
    """Return a line of plain text: node, phase, progress, remaining pods, and why the drain failed or is blocked."""
    status = get_status(maintenance)
    pending, blocked = len(status.get("pendingPods") or []), len(status.get("blockedPods") or [])
    progress = f"{get_phase_label(maintenance)} {status.get('drainProgress') or 0}%"
    reason = _get_stopping_error(maintenance) or _summarize_blocked_pods(maintenance)
    line = f"{get_node_name(maintenance)} {progress} {pending} pending, {blocked} blocked"
    return f"{line}: {reason}" if reason else line


def render_awaited_maintenances(maintenances: Sequence[Maintenance], now: datetime) -> RenderableType:
    """Build a table of the maintenances that the command waits for, followed by a line for each blocked drain."""
    reasons = ((maintenance, _summarize_blocked_pods(maintenance)) for maintenance in maintenances)
    lines = [
        Text(f"{format_full_name(maintenance)} waits: {reason}", "yellow") for maintenance, reason in reasons if reason
    ]
    return Group(render_overview(maintenances, now), *lines)


def render_overview(maintenances: Sequence[Maintenance], now: datetime, *, is_wide: bool = False) -> RenderableType:
    """Build a table with one row per maintenance, followed by one line per error.

    On a narrow terminal, the reasons are truncated, so that each row stays on one line. A wide table also shows the
    name of each maintenance, and the user who requested it.
    """
    if not maintenances:
        return Text("No maintenances found.")
    wide_columns = WIDE_COLUMNS if is_wide else ()
    table, errors = create_table(*OVERVIEW_COLUMNS, *wide_columns), []
    longest_node = max(len(get_node_name(maintenance)) for maintenance in maintenances)
    for column in table.columns[longest_node > MAX_UNBROKEN_NODE_CHARACTERS : OVERVIEW_COLUMNS.index("REASON")]:
        column.no_wrap = True
    wide_rows = [_build_wide_cells(maintenance) if is_wide else () for maintenance in maintenances]
    for column, cells in zip(table.columns[len(OVERVIEW_COLUMNS) :], zip(*wide_rows, strict=True), strict=True):
        column.no_wrap = max(map(len, cells)) <= MAX_UNBROKEN_WIDE_CHARACTERS
    for maintenance, wide_cells in zip(maintenances, wide_rows, strict=True):
        status, phase = get_status(maintenance), get_phase_label(maintenance)
        table.add_row(
            get_node_name(maintenance),
            Text(phase, PHASE_COLORS.get(phase, "")),
            render_bar(status.get("drainProgress") or 0, OVERVIEW_BAR_WIDTH),
            str(len(status.get("pendingPods") or [])),
            str(len(status.get("blockedPods") or [])),
            format_age(maintenance["metadata"]["creationTimestamp"], now),
            Text(_truncate_reason(maintenance, MAX_ROW_REASON_CHARACTERS), no_wrap=True, overflow="ellipsis"),
            *wide_cells,
        )
        if error := _get_stopping_error(maintenance):
            outcome = ERROR_VERBS[phase]
            errors.append(Text(f"{format_full_name(maintenance)} {outcome}: {error}", "red"))
    return Group(table, *errors)


def _build_wide_cells(maintenance: Maintenance) -> tuple[Text, ...]:
    return Text(maintenance["metadata"]["name"]), Text(get_requester(maintenance))


def _get_stopping_error(maintenance: Maintenance) -> str:
    """Return `lastError` of a maintenance that failed, cannot start or cannot continue; "" for any other one."""
    has_stopped = get_phase_label(maintenance) in ERROR_VERBS
    return str(get_status(maintenance).get("lastError") or "") if has_stopped else ""


def _summarize_blocked_pods(maintenance: Maintenance) -> str:
    """Return a sentence about the blocked pods, or "" if no pod is blocked."""
    status = get_status(maintenance)
    return summarize_blockers(status) if status.get("blockedPods") else ""


def render_details(
    node: str,
    state: str,
    maintenances: Sequence[Maintenance],
    now: datetime,
    budget_hints: BudgetHints = NO_HINTS,
    repair_notes: Mapping[str, Remedy] = NO_NOTES,
    *,
    is_wide: bool = False,
) -> RenderableType:
    """Build the detailed view of one node: its state, followed by its maintenances.

    If `is_wide` is true, the view lists every blocked pod. `budget_hints` are from `read_budget_hints`, and
    `repair_notes` are from `read_repair_notes`.
    """
    head = Text(f"Node {node}: {state}")
    if not maintenances:
        return Group(head, Text("No maintenances found."))
    parts = (
        _render_maintenance(
            maintenance, now, budget_hints, repair_notes.get(maintenance["metadata"]["uid"]), is_wide=is_wide
        )
        for maintenance in maintenances
    )
    return Group(head, *chain.from_iterable(parts))


def _render_maintenance(
    maintenance: Maintenance,
    now: datetime,
    budget_hints: BudgetHints,
    repair_note: Remedy | None,
    *,
    is_wide: bool,
) -> list[RenderableType]:
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
    if repair_note:
        parts += [Text(f"{repair_note.text}:", "yellow"), _indent_line(repair_note.command, 2)]
    if error := find_error_not_in_blocked_pods(status):
        parts.append(Text(f"Last error: {error}", "red"))
    if status.get("blockedPods"):
        commands = budget_hints.scale_commands
        groups = [
            group.add_scale_command(commands.get(group.budget_key, ""))
            for group in group_blocked_pods(status["blockedPods"], format_full_name(maintenance))
        ]
        parts += [Text(""), *_render_blocked(groups, now, budget_hints.allowing, is_wide=is_wide)]
    parts += _render_pending(status)
    return parts


def _format_users(maintenance: Maintenance) -> str:
    """Return the users who requested and ended the maintenance, as text; "" if both are unknown."""
    requester, ender = get_requester(maintenance), get_ending_user(maintenance)
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
    return f"{pending} of {format_count(status['evictionPods'], 'pod')} remaining, created {since} ago"


def _render_pending(status: Mapping[str, Any]) -> list[RenderableType]:
    """Build the list of pending pods that are not in the table of blocked pods."""
    blocked = {(pod["namespace"], pod["name"]) for pod in status.get("blockedPods") or []}
    names = [(pod["namespace"], pod["name"]) for pod in status.get("pendingPodsRefs") or []]
    unblocked = [f"  {namespace}/{name}" for namespace, name in names if (namespace, name) not in blocked]
    return [Text(""), Text("PENDING"), *map(Text, unblocked)] if unblocked else []


def _render_blocked(
    groups: Iterable[BlockedGroup], now: datetime, hints: Mapping[str, Remedy], *, is_wide: bool
) -> list[RenderableType]:
    """Build the list of blocked pods, grouped by cause; a wide list contains every pod.

    Each name and each command is on its own line, so that users can copy it from a narrow terminal.
    """
    lines = chain.from_iterable(
        _iter_blocked_lines(group, now, len(group.pods) if is_wide else MAX_NAMED_PODS, hints.get(group.budget_key))
        for group in groups
    )
    return [Text("BLOCKED", "bold"), *(_indent_line(line, columns) for columns, line in lines)]


def _iter_blocked_lines(
    group: BlockedGroup, now: datetime, max_named: int, hint: Remedy | None
) -> Iterator[tuple[int, str]]:
    """Yield indentation and text of each line about one cause: the cause, its hint, some pods, and the remedies."""
    since = f" for {format_age(group.since, now)}" if group.since else ""
    yield 2, f"{format_count(len(group.pods), 'pod')}{since}, {group.reason}: {group.message}"
    if hint:
        yield 4, f"{hint.text}:"
        yield 6, hint.command
    yield from ((4, name) for name in group.pods[:max_named])
    if len(group.pods) > max_named:
        yield 4, f"and {len(group.pods) - max_named} more"
    for number, remedy in enumerate(group.remedies):
        text = remedy.text if number else f"To unblock: {remedy.text}"
        yield 4, f"{text}:" if remedy.command else text
        if remedy.command:
            yield 6, remedy.command
    if group.retry_after:
        yield 4, f"next attempt at {group.retry_after} UTC"


def _indent_line(line: str, columns: int) -> Padding:
    return Padding(Text(line, overflow="fold"), (0, 0, 0, columns), expand=False)


def render_vmis(reports: Sequence[Mapping[str, Any]], read_error: str) -> list[RenderableType]:
    """Build the section about virtual machines, from reports by `kube.virtualization.drain_forecast.build_vmi_reports`.

    Returns an empty list without reports. If `read_error` is not empty, the section contains only that text.
    """
    if read_error:
        return [Text(""), Text(read_error, "red")]
    if not reports:
        return []
    parts = (part for report in reports for part in _render_vmi_report(report))
    return [Text(""), Text("VIRTUAL MACHINES", "bold"), *parts]


def _render_vmi_report(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the drain's effect on a virtual machine and, on indented lines, its strategies and its migration."""
    effect = Text.assemble((report["drain"], DRAIN_EFFECT_COLORS[report["drain"]]), f": {report['why']}")
    name = f"{report['namespace']}/{report['name']}  {report['phase']}  "
    yield Padding(Text.assemble(name, effect, overflow="fold"), (0, 0, 0, 2), expand=False)
    strategies = f"eviction {report['evictionStrategy'] or '–'}, run strategy {report['runStrategy'] or '–'}"
    yield _indent_line(
        f"{strategies}, {'migratable' if report['migratable'] else 'not migratable: ' + report['unable']}", 4
    )
    if report["migration"]:
        yield _indent_line(f"migration {_format_migration(report['migration'])}", 4)


def render_next_steps(steps: Sequence[NextStep]) -> list[RenderableType]:
    """Build the section with the next steps, each command on its own line; return an empty list without steps."""
    if not steps:
        return []
    lines = (line for step in steps for line in (_indent_line(f"{step.text}:", 2), _indent_line(step.command, 4)))
    return [Text(""), Text("NEXT", "bold"), *lines]


def _format_migration(migration: Mapping[str, str]) -> str:
    target = f" to {migration['target']}" if migration["target"] else ""
    return f"{migration['phase']}{target}: {migration['name']}"
