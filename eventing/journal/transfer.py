"""Exports a journal as text and imports it again: CloudEvents in the JSON format, one per line.

An event's extension `journaltime` is its arrival time. Its attempts follow it in one `attempts.made` event, or in
several if the line would be long.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, BinaryIO

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.events import ATTEMPTS_MADE
from eventing.journal.entries import Attempt, Entry, Query, attempts_event, attempts_in, moment
from eventing.journal.keys import attempt_keys, event_keys
from eventing.journal.batching import TOGETHER, portions
from eventing.http_binding import STRUCTURED, BadEvent, received, structured

if TYPE_CHECKING:
    from eventing.journal.store import Journal

ARRIVED = "journaltime"
LINE_LIMIT = 16 * 1024 * 1024
"""Maximum bytes of a line; an event of 2 MiB takes up to 12 MiB in the JSON format if all of it is escaped."""

Line = tuple[BaseCloudEvent, datetime] | list[Attempt]
"""An event with its arrival time, or attempts."""


class BrokenLine(ValueError):
    """A line is not a valid event; the message names its number and the problem."""


def exported(journal: Journal, query: Query) -> Iterator[bytes]:
    """Yield a line for each selected event, followed by lines for its attempts. Raises `JournalError`."""
    for entry in _entries(journal, query):
        event = entry.event
        whole = CloudEvent({**event.get_attributes(), ARRIVED: entry.arrived.isoformat()}, event.get_data())
        yield structured(whole).body + b"\n"
        for some in portions((made, len(json.dumps(made.as_data()))) for made in entry.attempts):
            yield structured(attempts_event(some)).body + b"\n"


def _entries(journal: Journal, query: Query) -> Iterator[Entry]:
    """Yield the selected entries, read in portions; entries that are pruned meanwhile are left out."""
    if query.limit:
        yield from journal.each(query)
        return
    while numbers := journal.numbers(replace(query, limit=TOGETHER)):
        yield from journal.each(Query(numbers=numbers))
        query = replace(query, after=max(numbers))


def imported(journal: Journal, file: BinaryIO) -> int:
    """Import an export into a journal; return the number of new events. A repeated import changes nothing.

    The whole file is checked first, so that an invalid line raises `BrokenLine` before anything is written. Each
    transaction then writes several lines, so that `record` does not wait for the whole file. If a `JournalError`
    interrupts the import, it can be repeated. Empty lines are skipped.
    """
    _check(file)
    file.seek(0)
    count = 0
    for portion in portions((numbered, len(numbered[1])) for numbered in _numbered(file)):
        some = [_parsed(*numbered) for numbered in portion]
        count += journal.write_all(line for line in some if isinstance(line, tuple))
        journal.write_attempts(attempt for line in some if isinstance(line, list) for attempt in line)
    return count


def _check(lines: Iterable[bytes]) -> None:
    """Raise `BrokenLine` for the first line that cannot be imported."""
    for number, line in _numbered(lines):
        _parsed(number, line)


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Return the lines that are not empty, with their numbers."""
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _parsed(number: int, line: bytes) -> Line:
    try:
        return _line(line)
    except BadEvent as error:
        raise BrokenLine(f"line {number}: {error}; nothing was imported") from None


def _line(line: bytes) -> Line:
    event = received({"content-type": STRUCTURED}, line, any_data=True, limit=LINE_LIMIT)
    if event.get_type() == ATTEMPTS_MADE:
        attempts = attempts_in(event)
        for attempt in attempts:
            attempt_keys(attempt)  # raises BadEvent for keys that are too long
        return attempts
    event_keys(event)  # raises BadEvent for keys that are too long
    attributes = event.get_attributes()
    time = attributes.pop(ARRIVED, None)  # absent if no journal exported the event: it arrives now
    arrived = datetime.now(timezone.utc) if time is None else moment(str(time))
    return CloudEvent(attributes, event.get_data()), arrived
