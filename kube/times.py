"""Timestamps in the format of Kubernetes: RFC 3339 in UTC."""

from __future__ import annotations

import re
from datetime import datetime, timezone

SECONDS, MICROSECONDS = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ"
"""The formats of the Kubernetes types Time and MicroTime."""
RFC_3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:[.,]\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def timestamp(moment: datetime) -> str:
    """Format a time with seconds, as used in metadata and conditions."""
    return moment.astimezone(timezone.utc).strftime(SECONDS)


def microtime(moment: datetime) -> str:
    """Format a time with microseconds, as used in Leases."""
    return moment.astimezone(timezone.utc).strftime(MICROSECONDS)


def moment(timestamp: str) -> datetime:
    """Parse an RFC 3339 timestamp, without its fraction of a second.

    Kubernetes writes the format of `timestamp`, but a status may also contain other time zones and fractions. Raises
    `ValueError` if the text is not an RFC 3339 timestamp.
    """
    found = RFC_3339.fullmatch(timestamp)
    if found is None:
        raise ValueError(f"{timestamp[:40]!r} is no time in RFC 3339")
    day, time, zone = found.groups()
    return datetime.fromisoformat(f"{day}T{time}{'+00:00' if zone in 'Zz' else zone}").astimezone(timezone.utc)


def moment_or_none(timestamp: object) -> datetime | None:
    """Parse a timestamp, or return None for an invalid one, which another program may have written."""
    try:
        return moment(timestamp) if isinstance(timestamp, str) else None
    except (ValueError, OverflowError):
        return None
