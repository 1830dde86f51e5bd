"""A point in time on the command line: so long ago, or a time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import click

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
AGO = re.compile(r"(\d{1,6})([smhd])")


class Moment(click.ParamType[datetime]):
    """`10m`, `2h`, `1d`: so long ago; else an ISO 8601 time, local where it names no zone."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Give the time, with zone; a usage error when it is none."""
        if isinstance(value, datetime):
            return value
        if match := AGO.fullmatch(value):
            return datetime.now(timezone.utc) - timedelta(**{UNITS[match[2]]: int(match[1])})
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00")).astimezone()
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is neither so long ago, such as 10m, 2h or 1d, nor a time, such as 2026-03-01T12:00",
                param,
                ctx,
            )
