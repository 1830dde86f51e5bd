"""Formats recorded events as a tree of causes and effects, as a table, or as JSON. Pure functions.

The lines contain ANSI styles, which `click.echo` removes if the output is not a terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from shlex import quote
from typing import Any

import click

from console.terminal.output import escape
from eventing.dead_letters import DeadLetter
from eventing.events import shorten_type
from eventing.http_binding import encode_structured
from eventing.journal.entries import SHORT_ID_CHARACTERS, Attempt, Entry, get_object_identity
from eventing.journal.origins import Origin, find_origin
from eventing.journal.tree import Branch, Tree, find_functions_without_attempt
from kube.text_limits import format_count
from kube.times import format_seconds, parse_time_or_none

SLOW_SECONDS = 1.0
"""Minimum duration of an attempt, or delay of an event, that is highlighted; no function should take that long."""
MAX_RECORDING_DELAY_SECONDS = 5
"""Maximum delay of a maintenance's first event after the creation of the object that the tree does not mention."""
MAX_INDENT_DEPTH = 12
"""Maximum depth of the tree's indentation; deeper events are not indented further."""
TYPE_WIDTH, DELAY_WIDTH = 40, 10
YEAR_CHARACTERS = len("2026-")
"""Number of characters of a formatted time that the table omits."""
UUID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Matches the id of an event that this product, Knative's sources or the API server's client has created."""
Row = tuple[str, ...]
HEADINGS: Row = (f"TIME ({datetime.now().astimezone():%Z})", "TYPE", "NODE", "ID", "ATTEMPTS")
"""Headings of the table; its times are in the local time zone, as are the values of `--since` and `--until`.

With names of normal length, the table must fit into 100 columns. The JSON output contains the full values.
"""


def format_trees(trees: Sequence[Tree], journal_options: str = "") -> Iterator[str]:
    """Yield a heading for each maintenance or upgrade run, one line per event, and how to replay the longest attempt.

    Successive events that led to nothing, such as ticks that changed nothing, share a line. `journal_options` are
    appended to the suggested command.
    """
    for number, tree in enumerate(trees):
        if number:
            yield ""
        branches = list(tree.iter_branches())
        origin = find_origin(branch.entry.event for _, branch in branches)
        yield _format_heading(tree, [branch for _, branch in branches], is_given_up=bool(origin.given_up))
        if text := origin.format():
            yield f"  {escape(text)}"
        start = min(branch.entry.arrived for _, branch in branches)
        yield from _format_late_start(origin, start)
        slowest, longest = _find_slowest_branch(branches), _find_longest_attempt(branches)
        for (is_idle, idle_depth), group in groupby(branches, _get_fold_key):
            depths_and_branches = list(group)
            if is_idle and len(depths_and_branches) > 1:
                yield _format_idle_events(idle_depth, [branch for _, branch in depths_and_branches], start)
            else:
                for depth, branch in depths_and_branches:
                    yield _format_branch(depth, branch, start, longest, is_slowest=branch is slowest)
        if longest:
            selection = f"--id {quote(longest.event)} --function {quote(longest.function)}"
            command = f"kubectl maintenance replay {selection} --dry-run=server{journal_options}"
            yield escape(f"To replay the longest attempt: {command}")


def _format_late_start(origin: Origin, start: datetime) -> Iterator[str]:
    """Yield when the object was created, if the first event arrived much later, such as after an outage of `record`."""
    created = parse_time_or_none(origin.created)
    if created and (seconds := int((start - created).total_seconds())) > MAX_RECORDING_DELAY_SECONDS:
        yield (
            f"  Created at {created.astimezone():%Y-%m-%d %H:%M:%S}, {format_seconds(seconds)} before the first event "
            "below"
        )


def is_idle_tick(entry: Entry, now: datetime) -> bool:
    """Return whether the event is an idle tick: it changed nothing, and no attempt of a function is missing."""
    return entry.is_idle_tick and not find_functions_without_attempt(entry, now)


def _find_slowest_branch(depths_and_branches: Iterable[tuple[int, Branch]]) -> Branch | None:
    """Return the branch with the longest delay after its cause; None if fewer than two branches have a delay."""
    delayed = [branch for _, branch in depths_and_branches if branch.delay_seconds and not _is_idle_branch(branch)]
    return max(delayed, key=lambda branch: branch.delay_seconds or 0.0) if len(delayed) > 1 else None


def _find_longest_attempt(depths_and_branches: Iterable[tuple[int, Branch]]) -> Attempt | None:
    """Return the attempt with the longest duration; None if functions had anything to do in fewer than two attempts."""
    branches = [branch for _, branch in depths_and_branches if not _is_idle_branch(branch)]
    attempts = [attempt for branch in branches for attempt in branch.attempts if not attempt.did_nothing]
    return max(attempts, key=lambda attempt: attempt.seconds) if len(attempts) > 1 else None


def _is_idle_branch(branch: Branch) -> bool:
    """Return whether the event led to nothing: a tick that changed nothing, or functions that had nothing to do.

    An event that reports a failure is never idle.
    """
    attempts = branch.attempts
    is_idle = branch.entry.is_idle_tick or (bool(attempts) and all(attempt.did_nothing for attempt in attempts))
    is_shown = branch.entry.failure_reason or branch.effects or branch.missing_functions or branch.dead_letters
    return is_idle and not is_shown


def _get_fold_key(depth_and_branch: tuple[int, Branch]) -> tuple[bool, int]:
    """Return a key that is equal for the events that may share a line: idle events with the same depth."""
    depth, branch = depth_and_branch
    return (True, depth) if _is_idle_branch(branch) else (False, 0)


def _format_idle_events(depth: int, branches: Sequence[Branch], start: datetime) -> str:
    """Format one line for several events that led to nothing."""
    first_offset, last_offset = ((branches[index].entry.arrived - start).total_seconds() for index in (0, -1))
    event_types = ", ".join(dict.fromkeys(shorten_type(branch.entry.event.get_type()) for branch in branches))
    text = f"{_format_indent(depth)}{escape(f'{event_types} ×{len(branches)}')}"
    return f"{first_offset:+9.3f} s  {text:{TYPE_WIDTH}} {'':{DELAY_WIDTH}}  no effects until {last_offset:+.3f} s"


def _format_heading(tree: Tree, branches: Sequence[Branch], *, is_given_up: bool) -> str:
    arrivals = [branch.entry.arrived for branch in branches]
    duration = (max(arrivals) - min(arrivals)).total_seconds()
    counts = [f"{format_count(len(branches), 'event')} in {duration:.3f} s", *_format_outcome_counts(branches)]
    if is_given_up:
        counts.append(click.style("given up", fg="yellow", bold=True))
    name = f"{tree.name} ({tree.uid})"
    title = f"{name}, node {tree.node}" if tree.kind == "NodeMaintenance" else f"{tree.kind} {name}"
    shown_title = click.style(escape(title) if tree.uid else "Without a maintenance", bold=True)
    begin = f"{_format_local_time(min(arrivals))} {min(arrivals).astimezone():%Z}"
    return f"{shown_title}, {begin}: {', '.join(counts)}"


def _format_outcome_counts(branches: Sequence[Branch]) -> Iterator[str]:
    """Yield the numbers of retried, failed and missing attempts and of dead letters, except zeros, as text."""
    failed = sum(len(branch.unresolved_failures) for branch in branches)
    retried = sum(attempt.step_failed for branch in branches for attempt in branch.attempts) - failed
    missing = sum(len(branch.missing_functions) - len(branch.replied_functions) for branch in branches)
    dead_letters = sum(len(branch.dead_letters) for branch in branches)
    if retried:
        yield f"{retried} retried"
    alerts = {f"{failed} failed": failed, f"{missing} missing": missing}
    for text, number in (alerts | {format_count(dead_letters, "dead letter"): dead_letters}).items():
        if number:
            yield click.style(text, fg="red", bold=True)


def _format_branch(depth: int, branch: Branch, start: datetime, longest: Attempt | None, *, is_slowest: bool) -> str:
    offset = (branch.entry.arrived - start).total_seconds()
    event_type = f"{_format_indent(depth)}{escape(shorten_type(branch.entry.event.get_type()))}"
    missing = [
        click.style(f"{name} RESPONDED, duration unknown", fg="yellow")
        if name in branch.replied_functions
        else _format_missing_attempt(name)
        for name in branch.missing_functions
    ]
    attempts = [
        f"{_format_attempt(attempt)}{click.style(' (longest attempt)', bold=True) if attempt is longest else ''}"
        for attempt in branch.attempts
    ]
    marks = [click.style("longest delay", bold=True)] if is_slowest else []
    report, dead_letters = _format_report(branch.entry), map(_format_dead_letter, branch.dead_letters)
    outcomes = [*report, *attempts, *missing, *dead_letters, *marks]
    start_columns = f"{offset:+9.3f} s  {event_type:{TYPE_WIDTH}} {_format_delay(branch):>{DELAY_WIDTH}}"
    return f"{start_columns}  {', '.join(outcomes)}".rstrip()


def _format_indent(depth: int) -> str:
    return "  " * (min(depth, MAX_INDENT_DEPTH) - 1) + "└─ " if depth else ""


def _format_delay(branch: Branch) -> str:
    """Return the event's delay after its cause as text, with the cause's type if the cause is not in the tree."""
    if branch.delay_seconds is None:
        return ""
    text = f"{branch.delay_seconds:.3f} s"
    if branch.delay_seconds >= SLOW_SECONDS:
        text = click.style(f"{text:>{DELAY_WIDTH}}", fg="yellow", bold=True)
    cause = branch.external_cause_type
    return f"{text} after {escape(shorten_type(cause))}" if cause else text


def _format_report(entry: Entry) -> Iterator[str]:
    """Yield the failed step and its error if the event reports a failure, or that the node no longer exists."""
    if entry.failure_reason:
        yield click.style(escape(entry.failure_reason), fg="red")
    if entry.is_node_deleted:
        yield click.style("the node no longer exists", fg="yellow")


def _format_attempt(attempt: Attempt) -> str:
    """Format the duration, if the function had to do anything, and the error of a failed step.

    The event that reports a failure has that failure's error.

    A function that reports its failure in a reply event responds with a status of success. Such an attempt is marked as
    FAILED, and the row of the reply event contains the error.
    """
    if attempt.did_nothing:
        return escape(f"{attempt.function}: nothing to do")
    text = escape(f"{attempt.function} {attempt.seconds * 1000:.0f} ms")
    if attempt.failed:
        return click.style(escape(f"{text} {attempt.status} {attempt.error}".rstrip()), fg="red")
    if attempt.reported_error:
        return click.style(f"{text} FAILED", fg="red", bold=True)
    return click.style(text, fg="yellow", bold=True) if attempt.seconds >= SLOW_SECONDS else text


def _format_missing_attempt(function: str) -> str:
    return click.style(f"{function} MISSING", fg="red", bold=True)


def _format_dead_letter(dead_letter: DeadLetter) -> str:
    text = f"DEAD LETTER {dead_letter.code} from {dead_letter.destination} {dead_letter.data}".rstrip()
    return click.style(escape(text), fg="red", bold=True)


def format_origins(origins: Mapping[tuple[str, str], Origin]) -> Iterator[str]:
    """Yield a line for each maintenance with a known origin: who started or ended it, why, or that it was given up."""
    for (uid, name), origin in origins.items():
        if text := origin.format():
            yield escape(f"{name} ({uid}): {text}")


def format_table(entries: Iterable[Entry], now: datetime, *, shows_names: bool = True) -> Iterator[str]:
    """Yield the headings and a row for each event (see `build_row`), or only the line "No events found."."""
    rows = [HEADINGS, *(build_row(entry, now, shows_names=shows_names) for entry in entries)]
    yield from format_rows(rows, measure_columns(rows)) if len(rows) > 1 else ["No events found."]


def measure_columns(rows: Sequence[Row]) -> list[int]:
    """Return the widths of all columns of the table except the last."""
    return [max(len(row[column]) for row in rows) for column in range(len(HEADINGS) - 1)]


def format_rows(rows: Iterable[Row], widths: Sequence[int]) -> Iterator[str]:
    """Yield each row of the table as a line, with cells padded to the column widths."""
    for row in rows:
        yield "   ".join([*(f"{text:{width}}" for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()


def build_row(entry: Entry, now: datetime, *, shows_names: bool = True) -> Row:
    """Return the cells of an event's row in the table.

    If `shows_names` is true, the object's name follows the node in parentheses, unless both are equal. `replay` accepts
    the short form of a UUID.
    """
    if entry.dead_letter:
        outcomes = [_format_dead_letter(entry.dead_letter)]
    else:
        attempts = [_format_attempt(attempt) for attempt in entry.attempts if not attempt.replay]
        outcomes = [
            *_format_report(entry),
            *attempts,
            *map(_format_missing_attempt, find_functions_without_attempt(entry, now)),
        ]
    name, event_id = get_object_identity(entry.event)[1], str(entry.event.get_id())
    has_own_name = shows_names and name not in ("", entry.node)
    node = " ".join(filter(None, (entry.node, f"({name})" if has_own_name else "")))
    short_id = event_id[:SHORT_ID_CHARACTERS] if UUID_PATTERN.fullmatch(event_id) else event_id
    cells = (shorten_type(entry.event.get_type()), node, short_id)
    return (_format_local_time(entry.arrived)[YEAR_CHARACTERS:], *map(escape, cells), ", ".join(outcomes))


def entry_to_json(entry: Entry, now: datetime) -> dict[str, Any]:
    """Return the entry as JSON data; `cause` is the id of the causing event, from which scripts can build a tree."""
    return {
        "seq": entry.seq,
        "arrived": entry.arrived.isoformat(),
        "cause": entry.cause,
        "maintenance": entry.maintenance,
        "node": entry.node,
        "event": json.loads(encode_structured(entry.event).body),
        "attempts": [attempt.as_data() for attempt in entry.attempts],
        "missing": list(find_functions_without_attempt(entry, now)),
        "deadLetter": vars(entry.dead_letter) if entry.dead_letter else None,
    }


def _format_local_time(time: datetime) -> str:
    """Format the time in the local time zone with its date, because a journal may span many days."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
