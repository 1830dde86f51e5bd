"""Writes output: redrawn in place on a terminal, as lines to a pipe, or as JSON for scripts."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from console.terminal.escaping import escape

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

T = TypeVar("T")
PIPE_WIDTH = 240
"""Width of output that does not go to a terminal, in columns: wide enough to keep each row on one line."""
REFRESH_PER_SECOND = 2
"""Redraw frequency, which keeps displayed ages up to date; changes are drawn immediately."""


def create_console() -> Console:
    """Return a new console on the current standard output, because tests replace that output."""
    from rich.console import Console  # slow import, needed only to draw

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)  # The text contains no markup.


def show(renderable: RenderableType) -> None:
    """Print one object that rich can render."""
    create_console().print(renderable)


def show_json(value: Any, indent: int | None = 2) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(value, indent=indent))


def show_json_list(items: Iterable[Any]) -> None:
    """Print a JSON list; each item is printed as soon as the iterable yields it."""
    separator = "["
    for item in items:
        click.echo(f"{separator}\n{textwrap.indent(json.dumps(item, indent=2), '  ')}", nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def show_json_line(value: Any) -> None:
    """Print one JSON object on one line."""
    show_json(value, indent=None)


def print_note(text: str, output: str = "table") -> None:
    """Print a line for the user, but nothing if `output` is JSON, because the JSON object contains all information."""
    if output == "table":
        click.echo(escape(text))


def warn(text: str) -> None:
    """Print a warning on stderr, as kubectl does, regardless of the output format.

    On a terminal, the text goes through `sys.stderr`, which a live display replaces to print above itself. Click would
    write to the original stream, into the display.
    """
    click.echo(f"Warning: {escape(text)}", file=sys.stderr if sys.stderr.isatty() else None, err=True)


@contextmanager
def show_live(render: Callable[[T], RenderableType], format_text: Callable[[T], str]) -> Iterator[Callable[[T], None]]:
    """Yield a function that shows the latest state: redrawn in place on a terminal, or printed when it changes."""
    console = create_console()
    if not console.is_terminal:
        yield _build_line_printer(format_text)
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


def _build_line_printer(format_text: Callable[[T], str]) -> Callable[[T], None]:
    last_lines = ""

    def show_lines(state: T) -> None:
        nonlocal last_lines
        lines = format_text(state)
        if lines and lines != last_lines:
            last_lines = lines
            click.echo(lines)

    return show_lines
