"""kubectl's way of writing flags that are true or false: `--force`, `--force=true`, `--force=false`."""

from __future__ import annotations

import click

TRUE = {"1", "t", "T", "true", "True", "TRUE"}
FALSE = {"0", "f", "F", "false", "False", "FALSE"}
"""What kubectl itself takes (Go's strconv.ParseBool)."""


class KubectlFlags(click.Command):
    """A command whose on/off options may carry `=true` or `=false`, as kubectl's do (DRN-3)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite `--x=false` as `--no-x`, which click knows; anything else is left for click to judge."""
        return super().parse_args(ctx, [self._plain(argument) for argument in args])

    def _plain(self, argument: str) -> str:
        flag, equals, value = argument.partition("=")
        if not equals or flag not in self._switches() or value not in TRUE | FALSE:
            return argument
        return flag if value in TRUE else f"--no-{flag.removeprefix('--')}"

    def _switches(self) -> set[str]:
        return {
            name
            for option in self.params
            if isinstance(option, click.Option) and option.secondary_opts
            for name in option.opts
        }
