"""Times as Kubernetes writes them: RFC 3339 in UTC."""

from __future__ import annotations

from datetime import datetime, timezone

SECONDS, MICROSECONDS = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ"
"""The forms of its types Time and MicroTime."""


def timestamp(moment: datetime) -> str:
    """A moment to the second, as in metadata and conditions."""
    return moment.astimezone(timezone.utc).strftime(SECONDS)


def microtime(moment: datetime) -> str:
    """A moment to the microsecond, as in a lease."""
    return moment.astimezone(timezone.utc).strftime(MICROSECONDS)
