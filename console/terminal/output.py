"""Writes output: redrawn in place on a terminal, as lines to a pipe, or as JSON for a program."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from console.terminal.escaping import escaped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

T = TypeVar("T")
PIPE_WIDTH = 240
"""Width of output that does not go to a terminal, in columns: wide enough to keep each row on one line."""
REFRESH_PER_SECOND = 2
"""How often ages are redrawn; changes are drawn immediately."""


def console() -> Console:
    """Return a console on the current standard output, new on each call because tests replace that output."""
    from rich.console import Console  # needed only for drawing

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)  # the text is not markup


def show(what: RenderableType) -> None:
    """Print one object that rich can render."""
    console().print(what)


def show_json(what: Any, indent: int | None = 2) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(what, indent=indent))


def show_json_list(items: Iterable[Any]) -> None:
    """Print one JSON list, and each item as soon as it arrives."""
    before = "["
    for item in items:
        click.echo(f"{before}\n{textwrap.indent(json.dumps(item, indent=2), '  ')}", nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def show_json_line(what: Any) -> None:
    """Print one JSON object on one line."""
    show_json(what, indent=None)


def note(text: str, output: str = "table") -> None:
    """Print a line for the user; with JSON output nothing, because the JSON object contains all information."""
    if output == "table":
        click.echo(escaped(text))


def warn(text: str) -> None:
    """Print a warning on stderr, as kubectl does, whatever the output format."""
    click.echo(f"Warning: {escaped(text)}", err=True)


@contextmanager
def live(render: Callable[[T], RenderableType], text: Callable[[T], str]) -> Iterator[Callable[[T], None]]:
    """Yield a function that shows the latest state: redrawn in place on a terminal, else as lines when they change."""
    out = console()
    if not out.is_terminal:
        yield _lines(text)
        return
    from rich.live import Live

    states: list[T] = []

    def newest() -> RenderableType:
        return render(states[-1]) if states else ""

    with Live(console=out, get_renderable=newest, refresh_per_second=REFRESH_PER_SECOND) as drawn:

        def redraw(state: T) -> None:
            states[:] = [state]
            drawn.refresh()

        yield redraw


def _lines(text: Callable[[T], str]) -> Callable[[T], None]:
    last = ""

    def show_lines(state: T) -> None:
        nonlocal last
        lines = text(state)
        if lines and lines != last:
            last = lines
            click.echo(lines)

    return show_lines
