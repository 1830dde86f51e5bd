"""The two errors that carry the policy (design: a bug stays a 500)."""

from __future__ import annotations


class Retry(Exception):
    """The same event may succeed later: answered with 503, so that the broker tries again."""


class Failed(Exception):
    """The step cannot be done: becomes a `maintenance.failed` event, which `status` records as `lastError`."""
