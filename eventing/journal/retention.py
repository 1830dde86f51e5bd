"""Retention of a journal: `$JOURNAL_DAYS` limits the age of its events, `$JOURNAL_BYTES` its size; unset, neither.

`record` prunes the journal beside its work: at its first event, and then once an hour while events come.
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
"""Seconds."""
SHARE = 8
"""As soon as an eighth of `$JOURNAL_BYTES` was written it is time, too: a flood must not fill the disk in an hour."""
UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
QUANTITY = re.compile(r"(\d{1,15})(Ki|Mi|Gi|Ti|)")
MOST_DAYS = 36500
log = logging.getLogger("functions")


@dataclass(frozen=True)
class Retention:
    """What to keep at most; None for no limit."""

    age: timedelta | None = None
    size: int | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Retention:
        """Raises `ValueError` naming the variable whose value is none that we know."""
        return cls(_age(environment.get(DAYS, "")), _size(environment.get(BYTES, "")))


class Pruner:
    """Prunes a journal now and then, in a thread of its own, one at a time: two would delete the same excess twice."""

    def __init__(self, journal: Journal, retention: Retention) -> None:
        self._journal, self._retention = journal, retention
        self._pruning = threading.Lock()
        self._due = 0.0 if retention != Retention() else float("inf")
        self._step = retention.size / SHARE if retention.size else float("inf")
        self._next = self._step

    def event_recorded(self) -> None:
        """Prune, if it is time, or much was written since, and nobody is at it; returns at once."""
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
