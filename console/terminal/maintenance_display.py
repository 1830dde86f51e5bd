"""Formats maintenances for the terminal: a table, the details of one node, and one line for a pipe. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from console.operations.descriptions import WAITING, age, full_name, held_up, phase_word, remedy
from kube.maintenance.objects import FAILED, Maintenance, node_name, spec_of, status_of
from kube.text_limits import counted

BAR_WIDTH = 20
HEADINGS = ("BLOCKED", "WHY", "BUDGET", "HEALTHY/NEEDED", "SINCE", "WHAT UNBLOCKS IT")
COMMAND = "kubectl "
"""Start of a command within a remedy; the list format of `BlockedPods` prints the command on its own line."""
SPACE, LEAST_FOR_REMEDY = 3, 40
"""Spaces between two table columns, and minimum width of the remedy column; a narrower one would break words."""
COLORS = {"Running": "yellow", "Succeeded": "green", "Failed": "red"}


def bar(percent: int) -> Text:
    """Build a progress bar with its percentage."""
    filled = BAR_WIDTH * percent // 100
    return Text.assemble(("━" * filled, "green"), ("─" * (BAR_WIDTH - filled), "dim"), f" {percent:3d}%")


def line(maintenance: Maintenance) -> str:
    """Return one line for a pipe: node, phase, progress, remaining pods, and why the drain failed or is blocked."""
    status = status_of(maintenance)
    blocked = len(status.get("blockedPods") or [])
    left = f"{len(status.get('pendingPods') or [])} pending, {blocked} blocked"
    progress = f"{phase_word(maintenance)} {status.get('drainProgress') or 0}%"
    return f"{node_name(maintenance)} {progress} {left}{_error(maintenance) or _held_up(maintenance)}"


def awaited(maintenance: Maintenance, now: datetime) -> RenderableType:
    """Build the table row of the maintenance that the command waits for, and below it what blocks the drain."""
    reason = _held_up(maintenance)
    below = [Text(f"{full_name(maintenance)} waits{reason}", "yellow")] if reason else []
    return Group(overview([maintenance], now), *below)


def overview(maintenances: Sequence[Maintenance], now: datetime) -> RenderableType:
    """Build a table with a row per maintenance, and below it a line for each error."""
    if not maintenances:
        return Text("No maintenance.")
    table = headed("NODE", "PHASE", "PROGRESS", "PENDING", "BLOCKED", "AGE", "REASON")
    for item in maintenances:
        status = status_of(item)
        word = phase_word(item)
        table.add_row(
            node_name(item),
            Text(word, COLORS.get(word, "")),
            bar(status.get("drainProgress") or 0),
            str(len(status.get("pendingPods") or [])),
            str(len(status.get("blockedPods") or [])),
            age(item["metadata"]["creationTimestamp"], now),
            Text(spec_of(item).get("reason") or ""),
        )
    errors = [Text(f"{full_name(item)} {_verb(item)}{_error(item)}", "red") for item in maintenances if _error(item)]
    return Group(table, *errors)


def _verb(item: Maintenance) -> str:
    return "failed" if phase_word(item) == FAILED else "waits"


def _error(item: Maintenance) -> str:
    """Return why the maintenance failed or cannot start, after a colon; "" while it is running."""
    error = status_of(item).get("lastError")
    return f": {error}" if phase_word(item) == FAILED or (phase_word(item) == WAITING and error) else ""


def _held_up(item: Maintenance) -> str:
    """Return why pods are blocked, after a colon; "" if none is."""
    status = status_of(item)
    return f": {held_up(status)}" if status.get("blockedPods") else ""


def details(name: str, state: str, maintenances: Sequence[Maintenance], now: datetime) -> RenderableType:
    """Build the view of one node: its state, then every maintenance that names it."""
    head = Text(f"Node {name}: {state}")
    if not maintenances:
        return Group(head, Text("No maintenance."))
    return Group(head, *(part for item in maintenances for part in _maintenance(item, now)))


def _maintenance(item: Maintenance, now: datetime) -> list[RenderableType]:
    status = status_of(item)
    reason = spec_of(item).get("reason")
    parts: list[RenderableType] = [
        Text(""),
        Text(f"{full_name(item)}{f': {reason}' if reason else ''}", "bold"),
        Text.assemble(f"{phase_word(item)}  ", bar(status.get("drainProgress") or 0), f"  {_counts(item, now)}"),
    ]
    if status.get("lastError"):
        parts.append(Text(f"Last error: {status['lastError']}", "red"))
    if status.get("blockedPods"):
        parts += [Text(""), BlockedPods(status["blockedPods"], now)]
    parts += _pending(status)
    return parts


def _counts(item: Maintenance, now: datetime) -> str:
    status = status_of(item)
    if "evictionPods" not in status:
        return "not begun yet"
    pending = len(status.get("pendingPods") or [])
    since = age(item["metadata"]["creationTimestamp"], now)
    return f"{pending} of {counted(status['evictionPods'], 'pod')} left, created {since} ago"


def _pending(status: Mapping[str, Any]) -> list[RenderableType]:
    """Build the list of pending pods that are not blocked: those missing from the table of blocked pods."""
    blocked = {(item["namespace"], item["name"]) for item in status.get("blockedPods") or []}
    names = [(item["namespace"], item["name"]) for item in status.get("pendingPodsRefs") or []]
    moving = [f"  {namespace}/{name}" for namespace, name in names if (namespace, name) not in blocked]
    return [Text(""), Text("PENDING"), *map(Text, moving)] if moving else []


class BlockedPods:
    """The blocked pods, drawn as a table if the terminal is wide enough, else as a few lines per pod.

    A table that is too wide would wrap names and commands, which then cannot be copied.
    """

    def __init__(self, blocked: Sequence[Mapping[str, Any]], now: datetime) -> None:
        self._rows = [_blocked_row(item, now) for item in blocked]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw a table or a list, depending on the available width."""
        widths = (max(map(cell_len, column)) for column in zip(HEADINGS, *self._rows, strict=True))
        *others, _remedy = (width + SPACE for width in widths)
        yield self._table() if sum(others) + LEAST_FOR_REMEDY <= options.max_width else self._list()

    def _table(self) -> Table:
        table = headed(*HEADINGS)
        for column in table.columns[:-1]:
            column.no_wrap = True
        for *cells, unblocks in self._rows:
            table.add_row(*cells, Text(unblocks))
        return table

    def _list(self) -> Group:
        return Group(Text(HEADINGS[0], "bold"), *(part for row in self._rows for part in _lines(row)))


def _blocked_row(item: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    counts = f"{item['healthy']}/{item['needed']}" if "healthy" in item and "needed" in item else ""
    since = age(item["since"], now) if item.get("since") else ""
    pod = f"{item['namespace']}/{item['name']}"
    return pod, item["reason"], item.get("budget") or "", counts, since, remedy(item)


def _lines(row: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the pod, why it is blocked, and indented below it what unblocks it."""
    pod, reason, budget, counts, since, unblocks = row
    under, counted_as = f"under {budget}" if budget else "", f"{counts} healthy/needed" if counts else ""
    about = (reason, under, counted_as, f"for {since}" if since else "")
    yield Text(pod)
    yield Padding(Text(", ".join(filter(None, about))), (0, 0, 0, 2))
    words, _, command = unblocks.partition(f": {COMMAND}")
    yield Padding(Text(f"{words}:" if command else words), (0, 0, 0, 2))
    if command:
        yield Padding(Text(f"{COMMAND}{command}"), (0, 0, 0, 4))


def headed(*columns: str) -> Table:
    """Build a table with these headings and without borders."""
    table = Table(box=None, pad_edge=False, padding=(0, SPACE, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
