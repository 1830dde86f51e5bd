"""Retention of the journal: `$JOURNAL_DAYS` limits the age of events, and `$JOURNAL_BYTES` their total size.

An unset variable means no limit. `record` prunes the journal in the background: at its first event, and then once an
hour as long as events arrive.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventing.journal.store import Journal

DAYS_VARIABLE, BYTES_VARIABLE = "JOURNAL_DAYS", "JOURNAL_BYTES"
PRUNE_INTERVAL_SECONDS = 3600.0
"""Seconds between two prunings."""
PRUNE_DIVISOR = 8
"""A pruning is also due when `1 / PRUNE_DIVISOR` of `$JOURNAL_BYTES` has been written since the last one.

Otherwise, a burst of events could fill the disk within an hour.
"""
UNIT_BYTES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
QUANTITY_PATTERN = re.compile(r"(\d{1,15})(Ki|Mi|Gi|Ti|)")
MAX_DAYS = 36500
log = logging.getLogger("functions")


@dataclass(frozen=True)
class Retention:
    """The limits of a journal's age and size; None means no limit."""

    max_age: timedelta | None = None
    max_bytes: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Retention:
        """Read the limits from the environment. Raises `ValueError`, which names the invalid variable."""
        return cls(_parse_age(environment.get(DAYS_VARIABLE, "")), _parse_size(environment.get(BYTES_VARIABLE, "")))


class Pruner:
    """Prunes a journal periodically in a background thread.

    Only one pruning runs at a time, because two would delete the same excess twice.
    """

    def __init__(self, journal: Journal, retention: Retention) -> None:
        self._journal, self._retention = journal, retention
        self._prune_lock = threading.Lock()
        self._next_prune_at = 0.0 if retention != Retention() else float("inf")
        self._bytes_per_prune = retention.max_bytes / PRUNE_DIVISOR if retention.max_bytes else float("inf")
        self._next_prune_bytes = self._bytes_per_prune

    def prune_if_due(self) -> None:
        """Start pruning in the background if it is due by time or by written bytes and is not already running."""
        now = time.monotonic()
        if (
            now >= self._next_prune_at or self._journal.written_bytes >= self._next_prune_bytes
        ) and not self._prune_lock.locked():
            self._next_prune_at, self._next_prune_bytes = (
                now + PRUNE_INTERVAL_SECONDS,
                self._journal.written_bytes + self._bytes_per_prune,
            )
            threading.Thread(target=self._prune, name="retention", daemon=True).start()

    def _prune(self) -> None:
        if not self._prune_lock.acquire(blocking=False):
            return
        try:
            count = self._journal.prune(self._retention.max_age, self._retention.max_bytes)
        except OSError as error:
            log.warning("failed to prune the journal: %s", error)
            return
        finally:
            self._prune_lock.release()
        if count:
            log.info("pruned the %d oldest events from the journal", count)


def _parse_age(text: str) -> timedelta | None:
    if not text:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not 0 < float(text) <= MAX_DAYS:
        raise ValueError(f"{DAYS_VARIABLE}={text} is not a number of days up to {MAX_DAYS}, such as 30 or 0.5")
    return timedelta(days=float(text))


def _parse_size(text: str) -> int | None:
    if not text:
        return None
    match = QUANTITY_PATTERN.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{BYTES_VARIABLE}={text} is not a number of bytes such as 500000000, 500Mi or 2Gi")
    return int(match[1]) * UNIT_BYTES[match[2]]
