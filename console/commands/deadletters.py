"""`kubectl maintenance deadletters`: lists dead letters, each with its function and the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from console.operations.dead_letter_redrive import build_dead_letter_fields
from console.operations.descriptions import format_age
from console.terminal.escaping import escape
from console.terminal.journal import journal_option, open_journal
from console.terminal.options import output_option
from console.terminal.output import show, show_json
from eventing.events import shorten_type
from eventing.journal.entries import Query
from eventing.replay.redrive import awaits_redrive


@click.command
@click.option("--all", "include_redriven", is_flag=True, help="Also list dead letters that were redriven.")
@journal_option
@output_option
def deadletters(include_redriven: bool, journal: str, output: str) -> None:
    """List dead letters, each with the event, the function that did not accept it, and the reason.

    \b
    Example:
      kubectl maintenance deadletters
      kubectl maintenance deadletters --all -o json
    """
    with open_journal(journal) as opened_journal:
        dead_letters = [
            build_dead_letter_fields(entry)
            for entry in opened_journal.iter_entries(Query(dead_letters_only=True))
            if include_redriven or awaits_redrive(entry)
        ]
    if output == "json":
        show_json({"deadLetters": dead_letters})
    else:
        show(build_table(dead_letters, datetime.now(timezone.utc)))


def build_table(dead_letters: Sequence[Mapping[str, Any]], now: datetime) -> RenderableType:
    """Build a table with one row per dead letter."""
    if not dead_letters:
        return Text("No dead letters found.")
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in ("EVENT", "TYPE", "NODE", "AGE", "FUNCTION", "CODE", "REASON"):
        table.add_column(column, overflow="fold")
    for fields in dead_letters:
        reason = " ".join(fields["reason"].split()) + ("" if fields["open"] else " (redriven)")
        function = fields["function"] or fields["destination"]
        cells = (
            fields["event"],
            shorten_type(fields["type"]),
            fields["node"],
            format_age(fields["arrived"], now),
            function,
            str(fields["code"]),
            reason,
        )
        table.add_row(*map(escape, cells))
    return table
