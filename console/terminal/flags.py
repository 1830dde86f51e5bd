"""Commands on one node, and kubectl's way of writing flags: `--force`, `--force=true`, `--force=false`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
DRY = {"server": True, "client": True, "none": False}
"""How kubectl writes a dry run. Of each the server is asked, and nothing is kept."""
VALUES = ("true", "false", *DRY)
"""What a switch may be given."""


class _TrueOrFalse(click.types.BoolParamType):
    """As click reads them, but for nothing at all, which is an empty variable of a shell rather than false.

    In: other words that are taken for one of them.
    """

    def __init__(self, words: Mapping[str, bool]) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """A usage error for what is neither."""
        if value == "":
            self.fail("nothing follows the =: write true or false", param, ctx)
        return self._words[value] if value in self._words else super().convert(value, param, ctx)


def switch(*names: str, help: str, default: bool | None = False) -> Callable[[Decorated], Decorated]:
    """A flag that is off unless given, or has another default, for a command of class `KubectlFlags`."""
    return click.option(*names, type=_TrueOrFalse({}), default=default, metavar="[=true|false]", help=help)


def dry_run_switch(help: str) -> Callable[[Decorated], Decorated]:
    """`--dry-run` alone or as kubectl has it, for a command of class `KubectlFlags`."""
    return click.option("--dry-run", type=_TrueOrFalse(DRY), default=False, metavar="[=server|none]", help=help)


class OneNode(click.Command):
    """A command on one node, which says so to who names several."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A usage error with the remedy for a word too many, where click would only name it."""
        words, ctx.allow_extra_args = [*args], True
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            ctx.fail(self.too_many(words, extra))
        return extra

    def too_many(self, words: Sequence[str], extra: Sequence[str]) -> str:
        """What to do about the words that are `extra` of all `words` of the command line."""
        return f"one node at a time: leave out {' '.join(extra)}"


class KubectlFlags(OneNode):
    """A command on one node whose switches may stand alone or carry a value after `=`, and never as the next word.

    DRN-1, DRN-3.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give a switch that stands alone its value, before click takes the next word for it."""
        switches = self._switches()
        return super().parse_args(ctx, [f"{word}=true" if word in switches else word for word in args])

    def too_many(self, words: Sequence[str], extra: Sequence[str]) -> str:
        """Where a value follows a switch as the next word it was meant for the switch."""
        switches = self._switches()
        for word, value in pairwise(words):
            switch = word.removesuffix("=true")
            if switch in switches and value in VALUES:
                return f"the value of {switch} is not a word of its own: write {switch}={value}"
        return super().too_many(words, extra)

    def _switches(self) -> set[str]:
        return {name for option in self.params if isinstance(option.type, _TrueOrFalse) for name in option.opts}
