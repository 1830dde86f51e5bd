"""Follows the journal: yields a table row for each new event, and again when the event's row changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from console.terminal.timeline import HEADINGS, Row, build_row, format_rows, is_idle_tick, measure_columns
from eventing.journal.entries import Entry, Query, strip_data
from eventing.journal.tree import find_functions_without_attempt

if TYPE_CHECKING:
    from eventing.journal.wire import JournalReader

RECHECK_SECONDS = 30.0
"""Seconds for which an event is read repeatedly, because its attempts are recorded after the event itself.

The time starts when this process reads the event, because an import can add events with any arrival time. For events
of the first read, it starts at their arrival, relative to the newest event's arrival, so that old events are not read
again.
"""


@dataclass
class EventFollower:
    """Follower of the events that match a query.

    Attributes:
        shows_ticks: Whether to yield idle ticks, which changed nothing.
        clock: Function that returns the current time, like `time.monotonic`.
    """

    journal: JournalReader
    query: Query
    shows_ticks: bool
    clock: Callable[[], float] = time.monotonic
    _rows: dict[int, Row] = field(default_factory=dict)
    _settle_times: dict[int, float] = field(default_factory=dict)
    _settled_seq: int = 0
    _widths: list[int] = field(default_factory=list)

    def read_lines(self) -> Iterator[str]:
        """Yield the lines to print: in the first call, the headings and all matching events; later, only changes.

        A tick without recorded attempts is not yielded yet, because only its attempts show whether it was idle.
        """
        is_first = not self._widths  # The first call sets the column widths.
        query = self.query if is_first else replace(self.query, after_seq=self._settled_seq, limit=0, keep_newest=False)
        now = datetime.now(timezone.utc)
        entries, shows_names = map(strip_data, self.journal.iter_entries(query)), not query.maintenance
        found = [(entry, build_row(entry, now, shows_names=shows_names)) for entry in entries]
        changed = [
            (entry.seq, row) for entry, row in found if self._rows.get(entry.seq) != row and self._is_shown(entry, now)
        ]
        rows = [*([HEADINGS] if is_first else []), *(row for _, row in changed)]
        if is_first:
            self._widths = measure_columns([HEADINGS])
        if rows:
            self._widths = list(map(max, self._widths, measure_columns(rows)))
        self._rows.update(changed)
        self._forget_settled_events([entry for entry, _ in found], is_first=is_first)
        yield from format_rows(rows, self._widths)

    def _is_shown(self, entry: Entry, now: datetime) -> bool:
        is_pending = not (entry.attempts or entry.dead_letter or find_functions_without_attempt(entry, now))
        return self.shows_ticks or not (is_idle_tick(entry, now) or (entry.is_from_tick and is_pending))

    def _forget_settled_events(self, entries: list[Entry], *, is_first: bool) -> None:
        """Forget all events before the first one that may still change, so that the next call does not read them."""
        now = self.clock()
        newest = max((entry.arrived for entry in entries), default=None)
        for entry in entries:
            age = (newest - entry.arrived).total_seconds() if is_first and newest else 0.0
            self._settle_times.setdefault(entry.seq, now + RECHECK_SECONDS - age)
        unsettled = [seq for seq, settle_time in self._settle_times.items() if settle_time > now]
        if unsettled:
            self._settled_seq = min(unsettled) - 1
        elif self._settle_times:
            self._settled_seq = max(self._settle_times)
        for seq in [seq for seq in self._settle_times if seq <= self._settled_seq]:
            del self._settle_times[seq]
            self._rows.pop(seq, None)
