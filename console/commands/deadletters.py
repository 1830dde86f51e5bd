"""`kubectl maintenance deadletters`: lists dead letters, each with its function and the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from console.operations.descriptions import age
from console.operations.dead_letter_redrive import letter_fields
from console.terminal.escaping import escaped
from console.terminal.options import output_option
from console.terminal.journal import journal_option, opened
from console.terminal.output import show, show_json
from eventing.event_types import short
from eventing.journal.entries import Query
from eventing.replay.redrive import is_open


@click.command
@click.option("--all", "everything", is_flag=True, help="Those too that were redriven since.")
@journal_option
@output_option
def deadletters(everything: bool, journal: str, output: str) -> None:
    """List dead letters: the event, the function that it could not be delivered to, and that function's answer.

    \b
    Example:
      kubectl maintenance deadletters
      kubectl maintenance deadletters --all -o json
    """
    with opened(journal) as book:
        found = [letter_fields(letter) for letter in book.each(Query(dead=True)) if everything or is_open(letter)]
    if output == "json":
        show_json({"deadLetters": found})
    else:
        show(table(found, datetime.now(timezone.utc)))


def table(letters: Sequence[Mapping[str, Any]], now: datetime) -> RenderableType:
    """Build a table with one row per dead letter."""
    if not letters:
        return Text("No dead letters.")
    rows = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in ("EVENT", "TYPE", "NODE", "AGE", "FUNCTION", "CODE", "REASON"):
        rows.add_column(column, overflow="fold")
    for fields in letters:
        reason = " ".join(fields["reason"].split()) + ("" if fields["open"] else " (redriven)")
        function = fields["function"] or fields["destination"]
        old = age(fields["arrived"], now)
        shown = (fields["event"], short(fields["type"]), fields["node"], old, function, str(fields["code"]), reason)
        rows.add_row(*map(escaped, shown))
    return rows
