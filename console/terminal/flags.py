"""Click commands for one node, with kubectl's syntax for boolean flags: `--force`, `--force=true`, `--force=false`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
DRY_RUN_VALUES = {"server": True, "client": True, "none": False}
"""kubectl's values of `--dry-run`; `client` has the same effect as `server`, and neither stores any change."""
SWITCH_VALUES = ("true", "false", *DRY_RUN_VALUES)
"""Values that a switch accepts."""


class _SwitchType(click.types.BoolParamType):
    """Click's boolean type, except that an empty value is an error: an unset shell variable must not mean false.

    In: additional accepted values, each with its boolean meaning.
    """

    def __init__(self, extra_values: Mapping[str, bool]) -> None:
        self._extra_values = extra_values

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return the boolean, or fail with a usage error."""
        if value == "":
            self.fail("the value after = is empty: write true or false", param, ctx)
        return self._extra_values[value] if value in self._extra_values else super().convert(value, param, ctx)


def switch_option(*names: str, help: str, default: bool | None = False) -> Callable[[Decorated], Decorated]:
    """Return a boolean flag option, off by default, for a command of class `KubectlFlagsCommand`."""
    return click.option(*names, type=_SwitchType({}), default=default, metavar="[=true|false]", help=help)


def dry_run_option(help: str) -> Callable[[Decorated], Decorated]:
    """Return the `--dry-run` option with kubectl's values, for a command of class `KubectlFlagsCommand`."""
    return click.option(
        "--dry-run", type=_SwitchType(DRY_RUN_VALUES), default=False, metavar="[=server|none]", help=help
    )


class SingleNodeCommand(click.Command):
    """A command for one node. If the user names several nodes, the error message lists what to omit."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if there are extra arguments, fail with a remedy, which click's own error lacks."""
        original_args, ctx.allow_extra_args = [*args], True
        extra_args = super().parse_args(ctx, args)
        if extra_args and not ctx.resilient_parsing:
            ctx.fail(self.format_extra_args_error(original_args, extra_args))
        return extra_args

    def format_extra_args_error(self, args: Sequence[str], extra_args: Sequence[str]) -> str:
        """Return the error message for the unexpected arguments `extra_args` among all arguments `args`."""
        return f"only one node is allowed: omit {' '.join(extra_args)}"


class KubectlFlagsCommand(SingleNodeCommand):
    """A command for one node whose switches stand alone or take a value after `=` (DRN-1, DRN-3).

    The next argument is never the value of a switch.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add `=true` to each switch that stands alone, so that click does not read the next argument as its value."""
        switches = self._list_switches()
        return super().parse_args(ctx, [f"{arg}=true" if arg in switches else arg for arg in args])

    def format_extra_args_error(self, args: Sequence[str], extra_args: Sequence[str]) -> str:
        """Return a message that suggests `=` if an argument after a switch is probably the switch's value."""
        switches = self._list_switches()
        for arg, value in pairwise(args):
            switch = arg.removesuffix("=true")
            if switch in switches and value in SWITCH_VALUES:
                return f"the value of {switch} must follow an equals sign: write {switch}={value}"
        return super().format_extra_args_error(args, extra_args)

    def _list_switches(self) -> set[str]:
        return {name for option in self.params if isinstance(option.type, _SwitchType) for name in option.opts}
