"""Times as Kubernetes writes them: RFC 3339 in UTC."""

from __future__ import annotations

import re
from datetime import datetime, timezone

SECONDS, MICROSECONDS = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ"
"""The forms of its types Time and MicroTime."""
RFC_3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:[.,]\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def timestamp(moment: datetime) -> str:
    """A moment to the second, as in metadata and conditions."""
    return moment.astimezone(timezone.utc).strftime(SECONDS)


def microtime(moment: datetime) -> str:
    """A moment to the microsecond, as in a lease."""
    return moment.astimezone(timezone.utc).strftime(MICROSECONDS)


def moment(timestamp: str) -> datetime:
    """The moment, to the second, that a time in RFC 3339 names. Raises `ValueError` for what is none.

    Kubernetes writes `timestamp`'s form, but a status takes all others, too: other zones, parts of a second.
    """
    found = RFC_3339.fullmatch(timestamp)
    if found is None:
        raise ValueError(f"{timestamp[:40]!r} is no time in RFC 3339")
    day, time, zone = found.groups()
    return datetime.fromisoformat(f"{day}T{time}{'+00:00' if zone in 'Zz' else zone}").astimezone(timezone.utc)


def moment_or_none(timestamp: object) -> datetime | None:
    """The moment; None for what is no time, as a status may have it that another program wrote."""
    try:
        return moment(timestamp) if isinstance(timestamp, str) else None
    except (ValueError, OverflowError):
        return None
