"""Click parameter types: durations, times, names, URLs."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import click
from click.core import ParameterSource

from console.operations.time_parsing import parse_time_or_age
from eventing.endpoints import is_url

UNIT_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SURROGATE_PATTERN = re.compile("[\ud800-\udfff]")
"""Matches the surrogate that Python uses for a command-line byte that is not UTF-8."""
CONTROL_PATTERN = re.compile(r"[\x00-\x1f\x7f]")
MAX_LIMIT = 2**63 - 1
DURATION_PART_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")


class Duration(click.ParamType[float]):
    """A duration in seconds, in kubectl's notation: `90s`, `5m`, `1h30m`; `0` means no limit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds, or fail with a usage error."""
        if isinstance(value, float):
            return value
        parts = DURATION_PART_PATTERN.findall(str(value))
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is not a duration such as 90s, 5m or 1h30m", param, ctx)
        return sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)


class TimeOrAge(click.ParamType[datetime]):
    """A point in time: an age such as `10m`, `2h` or `1d`, or an ISO 8601 time, in local time if it has no zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the timezone-aware time, or fail with a usage error."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_time_or_age(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Utf8Text(click.ParamType[str]):
    """Text in valid UTF-8, as the API server requires."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text unchanged, or fail with a usage error if it is not UTF-8."""
        if SURROGATE_PATTERN.search(str(value)):
            self.fail("the value is not valid UTF-8", param, ctx)
        return str(value)


class NonEmptyText(Utf8Text):
    """The name of an object, or another value that selects objects, such as a selector; the default "" means none.

    An empty value on the command line is an error: it probably comes from an unset shell variable, and must not select
    all objects.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name unchanged, or fail with a usage error if it is empty or not UTF-8."""
        if not str(value).strip() and not _is_default(param, ctx):
            self.fail("the value is empty: check whether a shell variable is unset", param, ctx)
        return super().convert(value, param, ctx)


class AccountName(NonEmptyText):
    """The name of a user or a group, which is sent in an HTTP header."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name unchanged, or fail with a usage error if it is empty, not UTF-8 or has control characters."""
        if CONTROL_PATTERN.search(str(value)):
            self.fail("the name of a user or group must not contain control characters", param, ctx)
        return super().convert(value, param, ctx)


def _is_default(param: click.Parameter | None, ctx: click.Context | None) -> bool:
    name = param.name if param else None
    return bool(ctx and name and ctx.get_parameter_source(name) is ParameterSource.DEFAULT)


class Limit(click.ParamType[int]):
    """A maximum number of results, where 0 means all. Its upper bound is the databases' largest integer."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with a usage error if it is invalid or too large."""
        try:
            number = int(value)
        except ValueError:
            number = -1
        if not 0 <= number <= MAX_LIMIT:
            self.fail(f"{value!r} is not a number from 1 to {MAX_LIMIT}, or 0 for all", param, ctx)
        return number


class Url(click.ParamType[str]):
    """A URL on the command line; "" means none."""

    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URL unchanged, or fail with a usage error if it is invalid."""
        if value and not is_url(value):
            self.fail(f"{value!r} is not a URL such as http://127.0.0.1:8080", param, ctx)
        return str(value)
