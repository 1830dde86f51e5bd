"""Exports a journal as text and imports it: one CloudEvent in the JSON format per line.

An event's extension `journaltime` is its arrival time. The attempts of an event follow it in an `attempts.made` event,
or in several if the line would be long.
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
from eventing.http_binding import STRUCTURED_CONTENT_TYPE, BadEvent, decode_event, encode_structured
from eventing.journal.entries import (
    MAX_BATCH_ITEMS,
    Attempt,
    Entry,
    Query,
    build_attempts_event,
    get_attempt_keys,
    get_event_keys,
    parse_attempts,
    parse_time,
    split_into_batches,
)

if TYPE_CHECKING:
    from eventing.journal.store import Journal
    from eventing.journal.wire import JournalReader

ARRIVAL_EXTENSION = "journaltime"
MAX_LINE_BYTES = 16 * 1024 * 1024
"""Maximum size of a line, in bytes; an event of 2 MiB takes up to 12 MiB if all of its characters are escaped."""

ParsedLine = tuple[BaseCloudEvent, datetime] | list[Attempt]
"""The content of an exported line: an event with its arrival time, or attempts."""


class InvalidLine(ValueError):
    """Error for a line that is not a valid event; the message contains the line's number."""


def export_lines(journal: JournalReader, query: Query) -> Iterator[bytes]:
    """Yield a line for each selected event, followed by lines for its attempts. Raises `JournalError`."""
    for entry in _iter_entries(journal, query):
        event = entry.event
        exported = CloudEvent(
            {**event.get_attributes(), ARRIVAL_EXTENSION: entry.arrived.isoformat()}, event.get_data()
        )
        yield encode_structured(exported).body + b"\n"
        for batch in split_into_batches((attempt, len(json.dumps(attempt.as_data()))) for attempt in entry.attempts):
            yield encode_structured(build_attempts_event(batch)).body + b"\n"


def _iter_entries(journal: JournalReader, query: Query) -> Iterator[Entry]:
    """Yield the selected entries, read in batches; entries that are pruned during the iteration are omitted."""
    if query.limit:
        yield from journal.iter_entries(query)
        return
    while seqs := journal.list_event_numbers(replace(query, limit=MAX_BATCH_ITEMS)):
        yield from journal.iter_entries(Query(seqs=seqs))
        query = replace(query, after_seq=max(seqs))


def import_file(journal: Journal, file: BinaryIO) -> int:
    """Import an exported file into a journal; return the number of new events. Repeating an import changes nothing.

    The whole file is checked first, so that an invalid line raises `InvalidLine` before anything is written. Each
    transaction then writes several lines, so that `record` does not wait until the whole file is written. If a
    `JournalError` interrupts the import, the import can be repeated. Empty lines are skipped.
    """
    for number, line in _enumerate_nonempty_lines(file):
        _parse_numbered_line(number, line)
    file.seek(0)
    count = 0
    for batch in split_into_batches((numbered, len(numbered[1])) for numbered in _enumerate_nonempty_lines(file)):
        parsed_lines = [_parse_numbered_line(*numbered) for numbered in batch]
        count += journal.write_events(parsed for parsed in parsed_lines if isinstance(parsed, tuple))
        journal.write_attempts(attempt for parsed in parsed_lines if isinstance(parsed, list) for attempt in parsed)
    return count


def _enumerate_nonempty_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Return the nonempty lines with their numbers."""
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _parse_numbered_line(number: int, line: bytes) -> ParsedLine:
    try:
        return _parse_line(line)
    except BadEvent as error:
        raise InvalidLine(f"line {number}: {error}; nothing was imported") from None


def _parse_line(line: bytes) -> ParsedLine:
    event = decode_event({"content-type": STRUCTURED_CONTENT_TYPE}, line, any_data=True, max_bytes=MAX_LINE_BYTES)
    if event.get_type() == ATTEMPTS_MADE:
        attempts = parse_attempts(event)
        for attempt in attempts:
            get_attempt_keys(attempt)  # raises BadEvent for keys that are too long
        return attempts
    get_event_keys(event)  # raises BadEvent for keys that are too long
    attributes = event.get_attributes()
    time = attributes.pop(ARRIVAL_EXTENSION, None)  # without this extension, the event arrives now
    arrived = datetime.now(timezone.utc) if time is None else parse_time(str(time))
    return CloudEvent(attributes, event.get_data()), arrived
