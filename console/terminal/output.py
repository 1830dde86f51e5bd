"""Prints output for a terminal, a pipe or a script, and asks for confirmation.

On a terminal, output has colors and is redrawn in place. A pipe receives lines of plain text, and a script JSON or
another structured format. Control characters in untrusted text are escaped, so that the text cannot move the cursor,
change colors or hide other text.
"""

from __future__ import annotations

import json
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
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
"""Format characters that are not escaped, because many languages and emoji sequences require them."""
COLUMN_SPACING = 3
"""Number of spaces between two table columns."""
PIPE_WIDTH = 240
"""Width in columns of output that does not go to a terminal; wide enough for each table row on one line."""
REFRESH_PER_SECOND = 2
"""Redraws per second of a live display, which keep ages up to date; changes are drawn immediately."""
TEXT_OUTPUTS = ("table", "wide")
"""Output formats for humans; all other formats are for scripts."""
INTERRUPT_NOTE_KEY = "console.interrupt_note"


def escape(text: str) -> str:
    """Return the text on one line, with control characters replaced by escapes such as `\\n` or `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character
        if unicodedata.category(character) not in ESCAPED_CATEGORIES or character in ALLOWED_FORMATS
        else character.encode("unicode_escape").decode()
        for character in text
    )


def escape_all(value: Any) -> Any:
    """Return a copy of a JSON value in which every string is escaped."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {escape_all(key): escape_all(item) for key, item in value.items()}
    return [escape_all(item) for item in value] if isinstance(value, list) else value


def create_console() -> Console:
    """Create a rich console for the current `sys.stdout`, which tests replace."""
    from rich.console import Console  # This slow import is not needed for JSON output.

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)  # Untrusted text must not act as markup.


def create_table(*columns: str) -> Table:
    """Build a table with these headings and without borders."""
    from rich.table import Table  # This slow import is not needed for JSON output.

    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_SPACING, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def show(renderable: RenderableType) -> None:
    """Print one rich renderable."""
    create_console().print(renderable)


def show_table(columns: Iterable[str], rows: Iterable[Iterable[str]], empty_message: str) -> None:
    """Escape the cells and print the table, or print `empty_message` if there are no rows."""
    table = create_table(*columns)
    for row in rows:
        table.add_row(*map(escape, row))
    show(table if table.rows else empty_message)


def show_described_rows(columns: Sequence[str], rows: Sequence[tuple[Sequence[str], str]], empty_message: str) -> None:
    """Escape and print rows of cells, each followed by indented lines with its description.

    A long description does not make the columns narrower, so a user of a narrow terminal can copy whole cells. Without
    rows, the function prints `empty_message`.
    """
    from rich.cells import cell_len, set_cell_size  # This slow import is not needed for JSON output.
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    cells = [columns, *(list(map(escape, row)) for row, _ in rows)]
    widths = [max(map(cell_len, column)) + COLUMN_SPACING for column in zip(*cells, strict=True)]
    headings, *lines = ("".join(map(set_cell_size, row, widths)).rstrip() for row in cells)
    descriptions = (Padding(Text(escape(description)), (0, 0, 0, 2), expand=False) for _, description in rows)
    parts: list[RenderableType] = [Text(headings, "bold")]
    for line, description in zip(lines, descriptions, strict=True):
        parts += [Text(line), description]
    show(Group(*parts) if rows else empty_message)


def show_json(value: Any, output: str = "json", *, indent: int | None = 2) -> None:
    """Print the value as JSON if the output format is `json`; otherwise, do nothing."""
    if output == "json":
        click.echo(json.dumps(value, indent=indent))


def show_object(value: Any, output: str, names: Iterable[str] = ()) -> None:
    """Print an object in a format for scripts: JSON, YAML, the fields that a template selects, or `names`.

    Does nothing if `output` is a format for humans.
    """
    if is_template(output):
        click.echo(format_fields(escape_all(value), output), nl=False)
    elif output == "yaml":
        import yaml  # This slow import is not needed for other formats.

        click.echo(yaml.safe_dump(value, sort_keys=False), nl=False)  # Like json.dumps, it escapes non-ASCII text.
    elif output == "name":
        for name in names:
            click.echo(escape(name))
    else:
        show_json(value, output)


def show_json_list(items: Iterable[Any]) -> None:
    """Print a JSON array; print each item as soon as `items` yields it."""
    separator = "["
    for item in items:
        click.echo(f"{separator}\n{textwrap.indent(json.dumps(item, indent=2), '  ')}", nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def print_note(text: str, output: str = "table") -> None:
    """Print a line of text if `output` is a format for humans; otherwise, do nothing."""
    if output in TEXT_OUTPUTS:
        click.echo(escape(text))


def warn(text: str) -> None:
    """Print a warning on stderr, as kubectl does, for all output formats.

    On a terminal, the function passes `sys.stderr` to click. A live display replaces `sys.stderr` to print text above
    itself; by default, click would write to the original stream, into the display.
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
    """Yield a function that prints a new state.

    On a terminal, the state is redrawn in place. A pipe receives the lines of `format_text` that the previous state did
    not have, each with the time if `with_times` is true. A script receives, for each state, a line of JSON, a YAML
    document, the fields that a template selects, or, with `-o name`, new lines of `format_text`.
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
    """Set the function that builds the message which is printed if Ctrl-C interrupts the command.

    The message states what continues or remains after the command has exited.
    """
    click.get_current_context().meta[INTERRUPT_NOTE_KEY] = build_note


def confirm(question: str, alternative: str) -> None:
    """Ask for confirmation on stderr. Raises `NoResult` if the user declines, or if stdin has no input.

    `alternative` is the remedy in the error message, such as "use --yes".
    """
    try:
        is_confirmed = click.confirm(question, err=True)
    except click.Abort as abort:
        click.echo(err=True)  # End the line with the question.
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise NoResult(f"no confirmation, nothing was done: {alternative}") from None
    if not is_confirmed:
        raise NoResult(f"not confirmed, nothing was done: {alternative}")
