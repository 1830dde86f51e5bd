"""Write output: redrawn in place on a terminal, lines for a pipe, JSON for a program."""

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
"""Columns for output that no terminal folds: wide enough that rows stay on one line."""
REFRESH_PER_SECOND = 2
"""How often ages are redrawn; changes are drawn at once."""


def console() -> Console:
    """The standard output as it is now; made afresh because tests replace it."""
    from rich.console import Console  # only what is drawn needs it

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)  # brackets and colons are others' text


def show(what: RenderableType) -> None:
    """Print one thing."""
    console().print(what)


def show_json(what: Any, indent: int | None = 2) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(what, indent=indent))


def show_json_list(items: Iterable[Any]) -> None:
    """Print one JSON list, each item as it comes."""
    before = "["
    for item in items:
        click.echo(f"{before}\n{textwrap.indent(json.dumps(item, indent=2), '  ')}", nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def show_json_line(what: Any) -> None:
    """Print one JSON object on one line."""
    show_json(what, indent=None)


def note(text: str, output: str = "table") -> None:
    """Show a line to a person; with JSON nothing, since the one object holds it all."""
    if output == "table":
        click.echo(escaped(text))


def warn(text: str) -> None:
    """Show a warning, as kubectl does: beside the output, whatever its form."""
    click.echo(f"Warning: {escaped(text)}", err=True)


@contextmanager
def live(render: Callable[[T], RenderableType], text: Callable[[T], str]) -> Iterator[Callable[[T], None]]:
    """A function that shows the newest state: drawn in place on a terminal, otherwise as lines when they differ."""
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
