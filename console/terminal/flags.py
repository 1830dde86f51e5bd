"""kubectl's way of writing flags that are true or false: `--force`, `--force=true`, `--force=false`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
METAVAR = "[=true|false]"


class _TrueOrFalse(click.types.BoolParamType):
    """As click reads them, but for nothing at all, which is an empty variable of a shell rather than false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """A usage error for what is neither."""
        if value == "":
            self.fail("nothing follows the =: write true or false", param, ctx)
        return super().convert(value, param, ctx)


def switch(*names: str, help: str, default: bool | None = False) -> Callable[[Decorated], Decorated]:
    """A flag that is off unless given, or has another default, for a command of class `KubectlFlags`."""
    return click.option(*names, type=_TrueOrFalse(), default=default, metavar=METAVAR, help=help)


class KubectlFlags(click.Command):
    """A command whose switches may stand alone or carry a value after `=`, never as the next word (DRN-1, DRN-3)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give a switch that stands alone its value, before click takes the next word for it."""
        switches = {name for option in self.params if option.metavar == METAVAR for name in option.opts}
        return super().parse_args(ctx, [f"{word}=true" if word in switches else word for word in args])
