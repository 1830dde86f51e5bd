"""Tests of exporting a journal as text, and of importing it."""

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
from eventing.events import Reference, event
from eventing.journal.store import Attempt, Entry, Journal, Query
from eventing.journal.transfer import LINE_LIMIT, BrokenLine, exported, imported

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
THEN = datetime(2026, 1, 2, 3, 4, 5, 678901, timezone.utc)


@pytest.fixture
def journals(journal_url: str, tmp_path: Path) -> Iterator[tuple[Journal, Journal]]:
    """Yield the journal to export, and another, empty one."""
    with closing(Journal(journal_url)) as one, closing(Journal(tmp_path / "other.db")) as other:
        yield one, other


def numbered(number: int) -> CloudEvent:
    return event(events.NODE_CORDONED, "cordon", MINE, "node-1", seed=str(number), data={"number": number})


def fill(journal: Journal, count: int) -> None:
    made = [(numbered(number), THEN + timedelta(seconds=number)) for number in range(count)]
    journal.write_all(made)
    reply = {"id": "r", "type": events.NODE_TAINTED}
    journal.write_attempts(Attempt(one.get_source(), one.get_id(), "taint", at, 0.1, 200, (reply,)) for one, at in made)


def text(journal: Journal, query: Query | None = None) -> bytes:
    return b"".join(exported(journal, query or Query()))


def held(journal: Journal) -> list[tuple[object, ...]]:
    """Return the complete content of the journal."""
    return [
        (entry.arrived, entry.event.get_attributes(), entry.event.get_data(), entry.attempts)
        for entry in journal.select()
    ]


@pytest.mark.slow
def test_what_is_exported_is_the_same_when_it_is_imported(journals: tuple[Journal, Journal]) -> None:
    """X-2: An import restores events, times of arrival, attempts and dead letters, in several transactions."""
    one, other = journals
    fill(one, 700)
    dead = {"knativeerrordest": "http://x/", "knativeerrorcode": "400", "knativeerrordata": "bm8="}
    one.write(CloudEvent({**numbered(1).get_attributes(), **dead}, {"number": 1}))
    one.write(CloudEvent({"id": "1", "source": "/x", "type": "x", "datacontenttype": "image/png"}, b"\xff\x00"))

    count = imported(other, io.BytesIO(text(one)))

    assert count == 702
    assert held(other) == held(one)


def test_attempts_that_are_more_than_a_line_takes_are_several(journals: tuple[Journal, Journal]) -> None:
    """X-2: The attempts on one event are exported in several lines if they exceed the maximum length of a line.

    Any client may cause large error responses, and each export must be importable.
    """
    one, other = journals
    event = numbered(1)
    one.write(event, THEN)
    made = Attempt(event.get_source(), event.get_id(), "taint", THEN, 0.1, 503, (), "\N{MEMO}" * 300_000)
    one.write_attempts(replace(made, at=THEN + timedelta(seconds=number)) for number in range(5))

    lines = text(one).splitlines(keepends=True)
    imported(other, io.BytesIO(b"".join(lines)))

    assert sum(map(len, lines)) > LINE_LIMIT > max(map(len, lines))
    assert held(other) == held(one)


def test_an_import_twice_changes_nothing(journals: tuple[Journal, Journal]) -> None:
    """X-2: A second import adds nothing, because source and id identify duplicates."""
    one, other = journals
    fill(one, 3)
    imported(other, io.BytesIO(text(one)))
    before = held(other)

    assert imported(other, io.BytesIO(text(one))) == 0
    assert held(other) == before


def test_each_line_is_an_event_in_the_json_format(journals: tuple[Journal, Journal]) -> None:
    """Check that each line is an event in the JSON format of CloudEvents 1.0, and that a query selects the events."""
    one, _ = journals
    fill(one, 3)

    lines = [json.loads(line) for line in text(one, Query(limit=2)).splitlines()]

    assert [line["type"] for line in lines] == [events.NODE_CORDONED, events.ATTEMPTS_MADE] * 2
    assert all(line["specversion"] == "1.0" for line in lines)
    assert lines[0]["journaltime"] == "2026-01-02T03:04:05.678901+00:00"


@pytest.mark.slow
def test_an_export_goes_on_where_its_first_events_are_pruned_meanwhile(journal_url: str) -> None:
    """X-2: An export continues if its first events are pruned between two reads, and exports all remaining events."""
    begin = THEN + timedelta(seconds=599.5)

    class Pruned(Journal):
        def select(self, query: Query | None = None) -> list[Entry]:
            self.prune(age=datetime.now(timezone.utc) - begin)
            return super().select(query)

    with closing(Pruned(journal_url)) as journal:
        fill(journal, 1200)
        lines = [json.loads(line) for line in text(journal).splitlines()]

    assert [line["data"]["number"] for line in lines if line["type"] == events.NODE_CORDONED] == list(range(600, 1200))


def test_what_no_journal_wrote_arrives_now(journals: tuple[Journal, Journal]) -> None:
    """X-2: Events of another tool can be imported; they arrive at the time of the import."""
    before = datetime.now(timezone.utc)
    line = b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "x"}\n\n'

    assert imported(journals[0], io.BytesIO(line)) == 1
    assert before <= journals[0].select()[0].arrived <= datetime.now(timezone.utc)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b"{half a li", "line 3: not a CloudEvent 1.0"),
        (b'"text"', "line 3: not a CloudEvent 1.0: the body is no JSON object"),
        (b'{"specversion": "1.0", "source": "/x", "type": "x"}', "line 3: .*id missing"),
        (
            b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "x", "journaltime": "noon"}',
            "line 3: 'noon' is no ISO",
        ),
        (
            b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "dev.nodemaintenance.attempts.made"}',
            "line 3: data.attempts is missing",
        ),
        (b"\xff\xfe", "line 3: not a CloudEvent 1.0"),
        (b'{"specversion": "1.0", "source": "/x", "type": "x", "id": "' + b"1" * 600 + b'"}', "line 3: id is over 512"),
        (
            b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "x", "journaltime": "9999-12-31T23:59:59Z"}',
            "line 3: .*no time that can be kept",
        ),
    ],
)
def test_a_broken_line_is_named_and_nothing_is_imported(
    journals: tuple[Journal, Journal], line: bytes, wrong: str
) -> None:
    """X-6: An invalid line is reported with its number, counted from 1, and nothing is imported."""
    one, other = journals
    fill(one, 2)
    lines = text(one).splitlines()

    with pytest.raises(BrokenLine, match=f"{wrong}.*nothing was imported"):
        imported(other, io.BytesIO(b"\n".join([*lines[:2], line, *lines[2:]])))
    assert other.select() == []
