"""Points in time as a person writes them: so long ago, or a time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
AGO = re.compile(r"(\d{1,6})([smhd])")


def parse_moment(text: str) -> datetime:
    """The time, with zone, of `10m`, `2h`, `1d` (ago), or of an ISO 8601 time, local where it names no zone.

    Raises `ValueError` with a sentence for a person.
    """
    try:
        if match := AGO.fullmatch(text):
            return datetime.now(timezone.utc) - timedelta(**{UNITS[match[2]]: int(match[1])})
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither so long ago, such as 10m, 2h or 1d, nor a time, such as 2026-03-01T12:00"
        ) from None
