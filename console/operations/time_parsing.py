"""Parses points in time as users write them: an age, or a date with a time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
AGO = re.compile(r"(\d{1,6})([smhd])")


def parse_moment(text: str) -> datetime:
    """Return the time, with zone, of an age such as `10m`, `2h` or `1d`, or of an ISO 8601 time.

    A time without a zone is local time. Raises `ValueError` with a message for the user.
    """
    try:
        if match := AGO.fullmatch(text):
            return datetime.now(timezone.utc) - timedelta(**{UNITS[match[2]]: int(match[1])})
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither so long ago, such as 10m, 2h or 1d, nor a time, such as 2026-03-01T12:00"
        ) from None
