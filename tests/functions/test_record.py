"""Tests of `record` and its journal."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.dead_letters import DeadLetter
from eventing.journal.entries import attempts_event
from eventing.journal.store import Attempt, Journal, Query
from eventing.signatures import KEY, signed
from eventing.http_binding import binary
from functions.record import OPENING, journal
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, tick
from tests.workload import Audit, Workload

MADE = {"source": "/", "event": "1", "function": "x", "at": "2026-01-01T00:00:00Z", "seconds": 0.1, "status": 200}


def test_every_event_is_kept_once(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2, X-1: `record` stores each event of any type once, and writes nothing to the cluster."""
    item = work.maintenance("nowhere")
    events = [added(item), tick()]

    statuses = [functions.post("record", event).status_code for event in [*events, *events]]

    kept = [entry.event.get_id() for entry in journal().select()]
    assert statuses == [204] * 4
    assert [kept.count(event.get_id()) for event in events] == [1, 1]
    assert audit.writes_by() == []


def test_a_dead_letter_is_told_from_the_event_that_it_was(functions: Functions) -> None:
    """X-6: an event and its later dead letter are stored as two entries, each once."""
    event = tick()
    failed = {"knativeerrordest": "http://cordon/", "knativeerrorcode": "400"}
    dead = CloudEvent({**event.get_attributes(), **failed}, event.get_data())

    for one in (event, dead, event, dead):
        functions.post("record", one)

    first, second = journal().select(Query(ids=(event.get_id(),)))
    assert first.dead_letter is None
    assert second.dead_letter == DeadLetter("http://cordon/", 400, "")


def test_an_event_arrived_when_it_came_and_not_when_the_journal_was_open(functions: Functions) -> None:
    """Arrival times are those of the requests, even if `record` waits for another writer of the journal."""
    event = tick()
    with ThreadPoolExecutor(1) as pool:
        with OPENING.turn(1):
            waiting = pool.submit(functions.post, "record", event)
            assert wait([waiting], timeout=0.5).not_done
            released = datetime.now(timezone.utc)
        assert waiting.result().status_code == 204

    (entry,) = journal().select(Query(ids=(event.get_id(),)))
    assert entry.arrived < released


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("application/json", b"{poison"), ("text/plain", b"poison"), ("application/octet-stream", b"\xff\x00")],
)
def test_what_no_function_can_read_is_kept_whole(functions: Functions, content_type: str, body: bytes) -> None:
    """X-6: `record` stores data that is not JSON, and the event can be sent again with the same body."""
    key = f"poison-{content_type}"
    headers = {"ce-specversion": "1.0", "ce-id": key, "ce-source": "/x", "ce-type": "x", "content-type": content_type}

    answer = functions.clients["record"].post("/record", headers=headers, data=body)

    (kept,) = journal().select(Query(ids=(key,)))
    assert answer.status_code == 204
    assert binary(kept.event).body == body


@pytest.mark.parametrize("name", ["id", "source", "knativeerrordest"])
def test_what_no_journal_can_hold_is_refused(functions: Functions, name: str) -> None:
    """X-6: `record` answers 400 to an attribute that is too long for an index of PostgreSQL."""
    event = CloudEvent({**tick().get_attributes(), name: "x" * 600}, {})

    answer = functions.post("record", event)

    assert answer.status_code == 400
    assert "is over 512 bytes" in answer.text


def test_the_journal_survives(functions: Functions) -> None:
    """X-2: a recorded event is still there when another process opens the journal."""
    event = tick()
    functions.post("record", event, mode="structured")

    with closing(Journal.of_environment()) as reopened:
        assert len(reopened.select(Query(ids=(event.get_id(),)))) == 1


def test_attempts_are_kept_with_their_event(functions: Functions) -> None:
    """X-6: `attempts.made` is not stored as an event; its attempts are stored with the event that they processed."""
    event = tick()
    made = Attempt(event.get_source(), event.get_id(), "resync", datetime.now(timezone.utc), 0.25, 204)
    told = attempts_event([made])

    statuses = [functions.post("record", one).status_code for one in (told, event, told)]

    (entry,) = journal().select(Query(ids=(event.get_id(),)))
    assert statuses == [204] * 3
    assert entry.attempts == (made,)
    assert journal().select(Query(ids=(told.get_id(),))) == []


@pytest.mark.parametrize("source", ["urn:somebody", events.SOURCE + "attempts"])
def test_attempts_of_anybody_else_are_refused(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """docs/security.md: `record` answers 403 to attempts without a valid signature, whatever their source."""
    monkeypatch.setenv(KEY, "secret")
    event = tick()
    made = Attempt(event.get_source(), event.get_id(), "resync", datetime.now(timezone.utc), 0.25, 204)
    told = attempts_event([made])
    forged = CloudEvent({**told.get_attributes(), "source": source}, told.get_data())

    assert functions.post("record", forged).status_code == 403
    assert functions.post("record", signed(told)).status_code == 204


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({}, "data.attempts is missing"),
        ({"attempts": [{}]}, "data.attempts[0].source"),
        ({"attempts": [{**MADE, "at": "soon"}]}, "'soon' is no ISO 8601 time"),
        ({"attempts": [{**MADE, "at": "0001-01-01T00:00:00+23:59"}]}, "is no ISO 8601 time"),
        ({"attempts": [{**MADE, "at": "9999-12-31T23:59:59.999999Z"}]}, "is no time that can be kept"),
        ({"attempts": [{**MADE, "at": "0001-01-01T00:00:00Z"}]}, "is no time that can be kept"),
        ({"attempts": [{**MADE, "status": 10**30}]}, "none of an attempt's"),
        ({"attempts": [{**MADE, "seconds": 10**400}]}, "none of an attempt's"),
        ({"attempts": [{**MADE, "replies": ["x"]}]}, "data.attempts[0].replies.id"),
        ({"attempts": [{**MADE, "event": "x" * 600}]}, "event is over 512 bytes"),
    ],
)
def test_attempts_that_are_none_are_refused(functions: Functions, data: dict[str, object], names: str) -> None:
    """X-6: `record` answers 400 to malformed attempts and names the field, so that no broker retries them."""
    event = CloudEvent({**attempts_event([]).get_attributes()}, data)

    answer = functions.post("record", event)

    assert answer.status_code == 400
    assert names in answer.text


def test_what_is_only_tried_is_not_recorded(functions: Functions) -> None:
    """X-2: `record` does not store an event of a dry run."""
    event = tick()
    tried = CloudEvent({**event.get_attributes(), "dryrun": "All", "replay": "1"}, event.get_data())

    assert functions.post("record", tried).status_code == 204
    assert journal().select(Query(ids=(event.get_id(),))) == []
