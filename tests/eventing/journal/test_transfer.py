"""Tests for exporting a journal as text, and for importing this text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.journal.store import Attempt, Entry, Journal, Query
from eventing.journal.transfer import MAX_LINE_BYTES, InvalidLine, export_lines, import_file

MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
FIXED_TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, timezone.utc)


@pytest.fixture
def source_and_target_journal(journal_url: str, tmp_path: Path) -> Iterator[tuple[Journal, Journal]]:
    """Yield the journal to export and an empty journal to import into."""
    with closing(Journal(journal_url)) as source, closing(Journal(tmp_path / "other.db")) as target:
        yield source, target


def build_numbered_event(number: int) -> CloudEvent:
    return build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "node-1", seed=str(number), data={"number": number})


def fill_journal(journal: Journal, count: int) -> None:
    dated_events = [(build_numbered_event(number), FIXED_TIME + timedelta(seconds=number)) for number in range(count)]
    journal.write_events(dated_events)
    reply = {"id": "r", "type": events.NODE_TAINTED}
    journal.write_attempts(
        Attempt(event.get_source(), event.get_id(), "taint", at, 0.1, 200, (reply,)) for event, at in dated_events
    )


def export_text(journal: Journal, query: Query | None = None) -> bytes:
    return b"".join(export_lines(journal, query or Query()))


def read_content(journal: Journal) -> list[tuple[object, ...]]:
    """Return the complete content of the journal."""
    return [
        (entry.arrived, entry.event.get_attributes(), entry.event.get_data(), entry.attempts)
        for entry in journal.select()
    ]


@pytest.mark.slow
def test_import_restores_exported_journal(source_and_target_journal: tuple[Journal, Journal]) -> None:
    """X-2: an import in several transactions restores events, arrival times, attempts and dead letters."""
    source, target = source_and_target_journal
    fill_journal(source, 700)
    dead_letter_extensions = {"knativeerrordest": "http://x/", "knativeerrorcode": "400", "knativeerrordata": "bm8="}
    source.write_event(
        CloudEvent({**build_numbered_event(1).get_attributes(), **dead_letter_extensions}, {"number": 1})
    )
    source.write_event(
        CloudEvent({"id": "1", "source": "/x", "type": "x", "datacontenttype": "image/png"}, b"\xff\x00")
    )

    count = import_file(target, io.BytesIO(export_text(source)))

    assert count == 702
    assert read_content(target) == read_content(source)


def test_attempts_beyond_line_limit_span_several_lines(source_and_target_journal: tuple[Journal, Journal]) -> None:
    """X-2: the attempts for one event are exported on several lines if they exceed the maximum line length.

    Any client may cause large error responses, and each export must be importable.
    """
    source, target = source_and_target_journal
    event = build_numbered_event(1)
    source.write_event(event, FIXED_TIME)
    attempt = Attempt(event.get_source(), event.get_id(), "taint", FIXED_TIME, 0.1, 503, (), "\N{MEMO}" * 300_000)
    source.write_attempts(replace(attempt, at=FIXED_TIME + timedelta(seconds=number)) for number in range(5))

    lines = export_text(source).splitlines(keepends=True)
    import_file(target, io.BytesIO(b"".join(lines)))

    assert sum(map(len, lines)) > MAX_LINE_BYTES > max(map(len, lines))
    assert read_content(target) == read_content(source)


def test_second_import_of_same_export_adds_nothing(source_and_target_journal: tuple[Journal, Journal]) -> None:
    """X-2: a second import adds nothing, because events whose source and id are already recorded are skipped."""
    source, target = source_and_target_journal
    fill_journal(source, 3)
    import_file(target, io.BytesIO(export_text(source)))
    before = read_content(target)

    assert import_file(target, io.BytesIO(export_text(source))) == 0
    assert read_content(target) == before


def test_each_exported_line_is_event_in_json_format(source_and_target_journal: tuple[Journal, Journal]) -> None:
    """Check that each exported line is an event in the CloudEvents JSON format, and that a query limits the export."""
    source, _ = source_and_target_journal
    fill_journal(source, 3)

    lines = [json.loads(line) for line in export_text(source, Query(limit=2)).splitlines()]

    assert [line["type"] for line in lines] == [events.NODE_CORDONED, events.ATTEMPTS_MADE] * 2
    assert all(line["specversion"] == "1.0" for line in lines)
    assert lines[0]["journaltime"] == "2026-01-02T03:04:05.678901+00:00"


@pytest.mark.slow
def test_export_continues_after_pruning(journal_url: str) -> None:
    """X-2: an export continues if its oldest events are pruned between two reads, and exports all remaining events."""
    start = FIXED_TIME + timedelta(seconds=599.5)

    class PrunedJournal(Journal):
        def select(self, query: Query | None = None) -> list[Entry]:
            self.prune(max_age=datetime.now(timezone.utc) - start)
            return super().select(query)

    with closing(PrunedJournal(journal_url)) as journal:
        fill_journal(journal, 1200)
        lines = [json.loads(line) for line in export_text(journal).splitlines()]

    assert [line["data"]["number"] for line in lines if line["type"] == events.NODE_CORDONED] == list(range(600, 1200))


def test_event_from_other_tool_gets_import_time_as_arrival_time(
    source_and_target_journal: tuple[Journal, Journal],
) -> None:
    """X-2: events from other tools can be imported; their arrival time is the time of the import."""
    before = datetime.now(timezone.utc)
    line = b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "x"}\n\n'

    assert import_file(source_and_target_journal[0], io.BytesIO(line)) == 1
    assert before <= source_and_target_journal[0].select()[0].arrived <= datetime.now(timezone.utc)


@pytest.mark.parametrize(
    ("line", "message_pattern"),
    [
        (b"{half a li", "line 3: not a CloudEvent 1.0"),
        (b'"text"', "line 3: not a CloudEvent 1.0: the body is not a JSON object"),
        (b'{"specversion": "1.0", "source": "/x", "type": "x"}', "line 3: .*id missing"),
        (
            b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "x", "journaltime": "noon"}',
            "line 3: 'noon' is not an ISO",
        ),
        (
            b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "dev.nodemaintenance.attempts.made"}',
            "line 3: data.attempts is missing",
        ),
        (b"\xff\xfe", "line 3: not a CloudEvent 1.0"),
        (
            b'{"specversion": "1.0", "source": "/x", "type": "x", "id": "' + b"1" * 600 + b'"}',
            "line 3: id is longer than 512",
        ),
        (
            b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "x", "journaltime": "9999-12-31T23:59:59Z"}',
            "line 3: .*is out of range",
        ),
    ],
)
def test_invalid_line_is_reported_and_nothing_is_imported(
    source_and_target_journal: tuple[Journal, Journal], line: bytes, message_pattern: str
) -> None:
    """X-6: an invalid line is reported with its line number, and nothing is imported."""
    source, target = source_and_target_journal
    fill_journal(source, 2)
    lines = export_text(source).splitlines()

    with pytest.raises(InvalidLine, match=f"{message_pattern}.*nothing was imported"):
        import_file(target, io.BytesIO(b"\n".join([*lines[:2], line, *lines[2:]])))
    assert target.select() == []
