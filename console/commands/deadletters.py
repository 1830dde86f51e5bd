"""`kubectl maintenance deadletters`: events that a function did not take, and why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from console.operations.diff import short
from console.operations.display import age
from console.terminal.options import output_option
from console.terminal.recording import journal_option, opened
from console.terminal.screen import show, show_json
from eventing.journal.entries import Entry, Query
from eventing.replay.redrive import function_of, is_open


@click.command
@click.option("--all", "everything", is_flag=True, help="Those too that were redriven since.")
@journal_option
@output_option
def deadletters(everything: bool, journal: str, output: str) -> None:
    """List the events that were given up: which function did not take them, with what answer.

    \b
    Example:
      kubectl maintenance deadletters
      kubectl maintenance deadletters --all -o json
    """
    with opened(journal) as book:
        found = [letter for letter in book.select(Query(dead=True)) if everything or is_open(letter)]
    if output == "json":
        show_json({"deadLetters": [as_json(letter) for letter in found]})
    else:
        show(table(found, datetime.now(timezone.utc)))


def as_json(letter: Entry) -> dict[str, Any]:
    """One dead letter for a program."""
    why = letter.dead_letter
    return {
        "event": letter.event.get_id(),
        "source": letter.event.get_source(),
        "type": letter.event.get_type(),
        "node": letter.node,
        "maintenance": letter.maintenance,
        "arrived": letter.arrived.isoformat(),
        "function": function_of(letter),
        "destination": why.destination if why else "",
        "code": why.code if why else 0,
        "reason": why.data if why else "",
        "open": is_open(letter),
    }


def table(letters: Sequence[Entry], now: datetime) -> RenderableType:
    """A row per dead letter."""
    if not letters:
        return Text("No dead letters.")
    rows = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in ("EVENT", "TYPE", "NODE", "AGE", "FUNCTION", "CODE", "REASON"):
        rows.add_column(column, overflow="fold")
    for letter in letters:
        said = as_json(letter)
        reason = " ".join(said["reason"].split()) + ("" if said["open"] else " (redriven)")
        function = said["function"] or said["destination"]
        old = age(said["arrived"], now)
        rows.add_row(said["event"], short(said["type"]), said["node"], old, function, str(said["code"]), Text(reason))
    return rows
