"""Retention of the journal: `$JOURNAL_DAYS` limits the age of events, and `$JOURNAL_BYTES` the total size.

A variable that is not set sets no limit. `record` prunes the journal in the background: at its first event, and then
once an hour while events arrive.
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

DAYS, BYTES = "JOURNAL_DAYS", "JOURNAL_BYTES"
EVERY = 3600.0
"""Seconds between two prunings."""
SHARE = 8
"""Writing an eighth of `$JOURNAL_BYTES` also makes a pruning due.

A burst of events could otherwise fill the disk within the hour.
"""
UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
QUANTITY = re.compile(r"(\d{1,15})(Ki|Mi|Gi|Ti|)")
MOST_DAYS = 36500
log = logging.getLogger("functions")


@dataclass(frozen=True)
class Retention:
    """The limits of a journal; None for no limit."""

    age: timedelta | None = None
    size: int | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Retention:
        """Read the limits from the environment. Raises `ValueError` with the name of an invalid variable."""
        return cls(_age(environment.get(DAYS, "")), _size(environment.get(BYTES, "")))


class Pruner:
    """Prunes a journal periodically, in a background thread.

    Only one pruning runs at a time: two would delete the same excess twice.
    """

    def __init__(self, journal: Journal, retention: Retention) -> None:
        self._journal, self._retention = journal, retention
        self._pruning = threading.Lock()
        self._due = 0.0 if retention != Retention() else float("inf")
        self._step = retention.size / SHARE if retention.size else float("inf")
        self._next = self._step

    def event_recorded(self) -> None:
        """Start a pruning if one is due by time or by bytes written, and none is running; return at once."""
        now = time.monotonic()
        if (now >= self._due or self._journal.written >= self._next) and not self._pruning.locked():
            self._due, self._next = now + EVERY, self._journal.written + self._step
            threading.Thread(target=self._prune, name="retention", daemon=True).start()

    def _prune(self) -> None:
        if not self._pruning.acquire(blocking=False):
            return
        try:
            count = self._journal.prune(self._retention.age, self._retention.size)
        except OSError as error:
            log.warning("the journal could not be pruned: %s", error)
            return
        finally:
            self._pruning.release()
        if count:
            log.info("pruned the %d oldest events of the journal", count)


def _age(text: str) -> timedelta | None:
    if not text:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not 0 < float(text) <= MOST_DAYS:
        raise ValueError(f"{DAYS}={text} is no number of days up to {MOST_DAYS}, such as 30 or 0.5")
    return timedelta(days=float(text))


def _size(text: str) -> int | None:
    if not text:
        return None
    match = QUANTITY.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{BYTES}={text} is no number of bytes such as 500000000, 500Mi or 2Gi")
    return int(match[1]) * UNITS[match[2]]
