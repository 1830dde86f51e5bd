"""Writes output to a terminal, a pipe or a script, and asks for confirmation.

On a terminal, output is drawn with colors and redrawn in place. A pipe receives lines, a script JSON. Untrusted text is
escaped, so that it cannot move the cursor, change colors or hide text.
"""

from __future__ import annotations

import json
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from console.operations.errors import NoResult
from console.terminal.output_templates import format_fields, is_template

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

T = TypeVar("T")
ESCAPED_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories to escape: control and format characters, surrogates, line and paragraph separators."""
ALLOWED_FORMATS = "\u200c\u200d"
"""Format characters that are not escaped, because many languages and emoji sequences need them."""
COLUMN_SPACING = 3
"""Spaces between two table columns."""
PIPE_WIDTH = 240
"""Width of output that does not go to a terminal, in columns: wide enough to keep each row on one line."""
REFRESH_PER_SECOND = 2
"""Redraw frequency, which keeps displayed ages up to date; changes are drawn immediately."""
TEXT_OUTPUTS = ("table", "wide")
"""Output formats for a user; all others are for scripts."""
INTERRUPT_NOTE_KEY = "console.interrupt_note"


def escape(text: str) -> str:
    """Return the text on one line, with control characters escaped, such as `\\n` or `\\x1b`; keep backslashes."""
    if text.isprintable():
        return text
    return "".join(
        character
        if unicodedata.category(character) not in ESCAPED_CATEGORIES or character in ALLOWED_FORMATS
        else character.encode("unicode_escape").decode()
        for character in text
    )


def escape_all(value: Any) -> Any:
    """Return the same structure of dicts and lists, with every string in it escaped."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {escape_all(key): escape_all(item) for key, item in value.items()}
    return [escape_all(item) for item in value] if isinstance(value, list) else value


def create_console() -> Console:
    """Return a new console on the current standard output, because tests replace that output."""
    from rich.console import Console  # slow import, needed only to draw

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)  # The text contains no markup.


def create_table(*columns: str) -> Table:
    """Build a table with these headings and without borders."""
    from rich.table import Table  # slow import, needed only to draw

    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_SPACING, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def show(renderable: RenderableType) -> None:
    """Print one object that rich can render."""
    create_console().print(renderable)


def show_table(columns: Iterable[str], rows: Iterable[Iterable[str]], empty_message: str) -> None:
    """Print a table of escaped text, or the message if there are no rows."""
    table = create_table(*columns)
    for row in rows:
        table.add_row(*map(escape, row))
    show(table if table.rows else empty_message)


def show_json(value: Any, output: str = "json", *, indent: int | None = 2) -> None:
    """Print one JSON object, but nothing if the output format is not JSON."""
    if output == "json":
        click.echo(json.dumps(value, indent=indent))


def show_object(value: Any, output: str, names: Iterable[str] = ()) -> None:
    """Print an object as JSON or YAML, its selected fields, or its names; print nothing if the format is a text."""
    if is_template(output):
        click.echo(format_fields(escape_all(value), output), nl=False)
    elif output == "yaml":
        import yaml  # slow import

        click.echo(yaml.safe_dump(value, sort_keys=False), nl=False)  # Like JSON, it escapes all but ASCII characters.
    elif output == "name":
        for name in names:
            click.echo(escape(name))
    else:
        show_json(value, output)


def show_json_list(items: Iterable[Any]) -> None:
    """Print a JSON list; each item is printed as soon as the iterable yields it."""
    separator = "["
    for item in items:
        click.echo(f"{separator}\n{textwrap.indent(json.dumps(item, indent=2), '  ')}", nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def print_note(text: str, output: str = "table") -> None:
    """Print a line for the user, but nothing if `output` is for scripts, because the object contains all of it."""
    if output in TEXT_OUTPUTS:
        click.echo(escape(text))


def warn(text: str) -> None:
    """Print a warning on stderr, as kubectl does, regardless of the output format.

    On a terminal, the text goes through `sys.stderr`, which a live display replaces to print above itself. Click would
    write to the original stream, into the display.
    """
    click.echo(f"Warning: {escape(text)}", file=sys.stderr if sys.stderr.isatty() else None, err=True)


@contextmanager
def show_live(
    render: Callable[[T], RenderableType],
    format_text: Callable[[T], str],
    output: str = "table",
    *,
    with_times: bool = True,
) -> Iterator[Callable[[T], None]]:
    """Yield a function that shows the latest state.

    On a terminal, the state is redrawn in place. A pipe receives each line that the previous state did not have,
    with the time if `with_times` is set. A script receives JSON on one line per state, a YAML document per state, the
    selected fields of each state, or names, which are the lines of `format_text`.
    """
    if output == "json":
        yield lambda state: show_json(state, indent=None)
        return
    if output == "yaml":
        yield _show_yaml_document
        return
    if is_template(output):
        yield lambda state: click.echo(format_fields(escape_all(state), output).removesuffix("\n"))
        return
    console = create_console()
    if output == "name" or not console.is_terminal:
        yield _build_line_printer(format_text, with_times=with_times and output != "name")
        return
    from rich.live import Live

    states: list[T] = []

    def render_latest() -> RenderableType:
        return render(states[-1]) if states else ""

    with Live(console=console, get_renderable=render_latest, refresh_per_second=REFRESH_PER_SECOND) as live_display:

        def redraw(state: T) -> None:
            states[:] = [state]
            live_display.refresh()

        yield redraw


def _show_yaml_document(state: Any) -> None:
    click.echo("---")
    show_object(state, "yaml")


def _build_line_printer(format_text: Callable[[T], str], *, with_times: bool) -> Callable[[T], None]:
    last_lines: list[str] = []

    def show_lines(state: T) -> None:
        lines = format_text(state).splitlines()
        time = f"{datetime.now():%Y-%m-%d %H:%M:%S} " if with_times else ""
        for line in lines:
            if line not in last_lines:
                click.echo(f"{time}{line}")
        last_lines[:] = lines

    return show_lines


def set_interrupt_note(build_note: Callable[[], str]) -> None:
    """Set the note to print if Ctrl-C interrupts the command from now on.

    The note reports what continues or remains after the command has exited.
    """
    click.get_current_context().meta[INTERRUPT_NOTE_KEY] = build_note


def confirm(question: str, alternative: str) -> None:
    """Ask for confirmation on stderr. Raises `NoResult` if the answer is no, or if stdin gives no answer.

    `alternative` describes what the user can do without a confirmation.
    """
    try:
        is_confirmed = click.confirm(question, err=True)
    except click.Abort as abort:
        click.echo(err=True)  # ends the line of the question
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise NoResult(f"no confirmation, nothing was done: {alternative}") from None
    if not is_confirmed:
        raise NoResult(f"not confirmed, nothing was done: {alternative}")
