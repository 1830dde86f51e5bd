"""Parses points in time that users enter: an age, or an ISO 8601 date and time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

AGE_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
AGE_PATTERN = re.compile(r"(\d{1,6})([smhd])")


def parse_time_or_age(text: str) -> datetime:
    """Return the timezone-aware time for an age such as `10m`, `2h` or `1d`, or for an ISO 8601 time.

    A time without a zone is local time. Raises `ValueError` with a message for the user.
    """
    try:
        if match := AGE_PATTERN.fullmatch(text):
            return datetime.now(timezone.utc) - timedelta(**{AGE_UNITS[match[2]]: int(match[1])})
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither an age, such as 10m, 2h or 1d, nor a time, such as 2026-03-01T12:00"
        ) from None
