"""Follows the journal: returns each event as a row of the table when the event arrives, and when its row changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from console.terminal.timeline import HEADINGS, Row, build_row, format_rows, is_idle_tick, measure_columns
from eventing.journal.entries import Entry, Query, strip_data
from eventing.journal.tree import find_missing_functions

if TYPE_CHECKING:
    from eventing.journal.wire import JournalReader

RECHECK_AGE = timedelta(seconds=30)
"""Age up to which an event is read again, because its attempts are recorded after the event itself.

The age is relative to the newest event, so the clocks of this machine and of `record` need not agree.
"""


@dataclass
class EventFollower:
    """The state of a command that follows the events of a query.

    Attributes:
        shows_ticks: Whether to return ticks that changed nothing.
    """

    journal: JournalReader
    query: Query
    shows_ticks: bool
    _rows: dict[int, Row] = field(default_factory=dict)
    _arrivals: dict[int, datetime] = field(default_factory=dict)
    _settled_seq: int = 0
    _widths: list[int] = field(default_factory=list)

    def read_lines(self) -> Iterator[str]:
        """Yield the lines to print now: at the first call the headings and all events of the query, then the changes.

        A tick without an attempt is not returned yet, because only its attempts show whether it changed anything.
        """
        is_first = not self._widths  # The headings always have widths.
        query = self.query if is_first else replace(self.query, after_seq=self._settled_seq, limit=0, keep_newest=False)
        now = datetime.now(timezone.utc)
        found = [(entry, build_row(entry, now)) for entry in map(strip_data, self.journal.iter_entries(query))]
        changed = [
            (entry.seq, row) for entry, row in found if self._rows.get(entry.seq) != row and self._is_shown(entry, now)
        ]
        rows = [*([HEADINGS] if is_first else []), *(row for _, row in changed)]
        if is_first:
            self._widths = measure_columns([HEADINGS])
            self._settled_seq = min((entry.seq for entry, _ in found), default=1) - 1
        if rows:
            self._widths = list(map(max, self._widths, measure_columns(rows)))
        self._rows.update(changed)
        self._settle([entry for entry, _ in found])
        yield from format_rows(rows, self._widths)

    def _is_shown(self, entry: Entry, now: datetime) -> bool:
        is_pending = not (entry.attempts or entry.dead_letter or find_missing_functions(entry, now))
        return self.shows_ticks or not (is_idle_tick(entry, now) or (entry.is_from_tick and is_pending))

    def _settle(self, entries: list[Entry]) -> None:
        """Forget the events that are too old to change, so that the next call does not read them again."""
        self._arrivals.update((entry.seq, entry.arrived) for entry in entries)
        newest = max(self._arrivals.values(), default=None)
        settled = [seq for seq, arrived in self._arrivals.items() if newest and newest - arrived > RECHECK_AGE]
        self._settled_seq = max(settled, default=self._settled_seq)
        for seq in settled:
            del self._arrivals[seq]
            self._rows.pop(seq, None)
