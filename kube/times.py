"""Formats and parses timestamps as Kubernetes does: RFC 3339 in UTC. Also formats durations."""

from __future__ import annotations

import re
from datetime import datetime, timezone

TIME_FORMAT, MICRO_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ"
"""Formats of the Kubernetes API types Time and MicroTime."""
RFC_3339_PATTERN = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:[.,]\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def format_time(time: datetime) -> str:
    """Format a time to the second, as in metadata and conditions."""
    return time.astimezone(timezone.utc).strftime(TIME_FORMAT)


def format_micro_time(time: datetime) -> str:
    """Format a time to the microsecond, as in Leases."""
    return time.astimezone(timezone.utc).strftime(MICRO_TIME_FORMAT)


def format_seconds(seconds: int) -> str:
    """Return a duration in kubectl's notation, such as `45s`, `2m` or `1h30m`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def parse_time(timestamp: str) -> datetime:
    """Parse an RFC 3339 timestamp, and drop its fraction of a second.

    Kubernetes writes the format of `format_time`, but a status may also contain other time zones and fractions. Raises
    `ValueError` if the text is not an RFC 3339 timestamp.
    """
    match = RFC_3339_PATTERN.fullmatch(timestamp)
    if match is None:
        raise ValueError(f"{timestamp[:40]!r} is not an RFC 3339 time")
    day, time, zone = match.groups()
    return datetime.fromisoformat(f"{day}T{time}{'+00:00' if zone in 'Zz' else zone}").astimezone(timezone.utc)


def parse_time_or_none(timestamp: object) -> datetime | None:
    """Parse a timestamp that another client may have written; return None if it is invalid."""
    try:
        return parse_time(timestamp) if isinstance(timestamp, str) else None
    except (ValueError, OverflowError):
        return None
