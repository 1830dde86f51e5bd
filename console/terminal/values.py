"""The types of values on the command line: durations, moments, names, URLs."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import click
from click.core import ParameterSource

from console.operations.moments import parse_moment
from eventing.urls import is_url

SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SURROGATE = re.compile("[\ud800-\udfff]")
"""What stands for a byte of the command line that is no UTF-8."""
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MOST = 2**63 - 1
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")


class Duration(click.ParamType[float]):
    """A length of time as kubectl writes it: `90s`, `5m`, `1h30m`; `0` is without limit. In seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Give the seconds; a usage error when it is no duration."""
        if isinstance(value, float):
            return value
        parts = PART.findall(str(value))
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is not a duration such as 90s, 5m or 1h30m", param, ctx)
        return sum(float(number) * SECONDS[unit] for number, unit in parts)


class Moment(click.ParamType[datetime]):
    """`10m`, `2h`, `1d`: so long ago; else an ISO 8601 time, local where it names no zone."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Give the time, with zone; a usage error when it is none."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_moment(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Text(click.ParamType[str]):
    """Words in UTF-8, as the API server takes them."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give it as it is; a usage error for what is no text."""
        if SURROGATE.search(str(value)):
            self.fail("it is no UTF-8: name one as the cluster does", param, ctx)
        return str(value)


class Name(Text):
    """The name of an object, or what else tells some from the others, as a selector; a default of "" is none.

    An empty one on the command line is a variable of a shell that is not set, and must not stand for all.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give it as it is; a usage error for an empty one, and for one that is no text."""
        if not str(value).strip() and not _is_default(param, ctx):
            self.fail("it is empty: name one, or is a variable of the shell not set?", param, ctx)
        return super().convert(value, param, ctx)


class Account(Name):
    """The name of a user or a group, which travels in a header."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give it as it is; a usage error also for one that no header can carry."""
        if CONTROL.search(str(value)):
            self.fail("a control character is in it: no user or group is called so", param, ctx)
        return super().convert(value, param, ctx)


def _is_default(param: click.Parameter | None, ctx: click.Context | None) -> bool:
    named = param.name if param else None
    return bool(ctx and named and ctx.get_parameter_source(named) is ParameterSource.DEFAULT)


class Limit(click.ParamType[int]):
    """How many at most; 0 is all. No database can be given a larger number."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Give the number; a usage error when it is none, or none that can be asked for."""
        try:
            number = int(value)
        except ValueError:
            number = -1
        if not 0 <= number <= MOST:
            self.fail(f"{value!r} is no number from 1 to {MOST}; 0 is for all", param, ctx)
        return number


class Url(click.ParamType[str]):
    """An address on the command line; "" is none."""

    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give it as it is; a usage error when nothing can be sent there."""
        if value and not is_url(value):
            self.fail(f"{value!r} is not a URL such as http://127.0.0.1:8080", param, ctx)
        return str(value)
