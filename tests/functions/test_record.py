"""Tests for `record` and its journal."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.dead_letters import DeadLetter
from eventing.http_binding import encode_binary
from eventing.journal.entries import build_attempts_event
from eventing.journal.store import Attempt, Journal, Query
from eventing.signatures import KEY_VARIABLE, sign_event
from functions.record import JOURNAL_OPENING, get_journal
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added_event, build_tick
from tests.workload import Workload

ATTEMPT = {"source": "/", "event": "1", "function": "x", "at": "2026-01-01T00:00:00Z", "seconds": 0.1, "status": 200}


def test_each_event_is_stored_once(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2, X-1: `record` stores each event of any type once, and sends no write requests to the API server."""
    maintenance = workload.create_maintenance("nowhere")
    events = [build_added_event(maintenance), build_tick()]

    statuses = [functions.post("record", event).status_code for event in [*events, *events]]

    stored_ids = [entry.event.get_id() for entry in get_journal().select()]
    assert statuses == [204] * 4
    assert [stored_ids.count(event.get_id()) for event in events] == [1, 1]
    assert audit.list_writes_by() == []


def test_dead_letter_is_stored_as_separate_entry(functions: Functions) -> None:
    """X-6: `record` stores an event and its later dead letter as two entries, and stores each only once."""
    event = build_tick()
    failed = {"knativeerrordest": "http://cordon/", "knativeerrorcode": "400"}
    dead_letter = CloudEvent({**event.get_attributes(), **failed}, event.get_data())

    for posted_event in (event, dead_letter, event, dead_letter):
        functions.post("record", posted_event)

    first, second = get_journal().select(Query(ids=(event.get_id(),)))
    assert first.dead_letter is None
    assert second.dead_letter == DeadLetter("http://cordon/", 400, "")


def test_arrival_time_of_event_is_time_of_request(functions: Functions) -> None:
    """Check that an event's arrival time is the time of the request, even if `record` waits for the journal's lock."""
    event = build_tick()
    with ThreadPoolExecutor(1) as pool:
        with JOURNAL_OPENING.hold(1):
            response_future = pool.submit(functions.post, "record", event)
            assert wait([response_future], timeout=0.5).not_done
            release_time = datetime.now(timezone.utc)
        assert response_future.result().status_code == 204

    (entry,) = get_journal().select(Query(ids=(event.get_id(),)))
    assert entry.arrived < release_time


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("application/json", b"{poison"), ("text/plain", b"poison"), ("application/octet-stream", b"\xff\x00")],
)
def test_event_data_that_is_not_json_is_stored_unchanged(functions: Functions, content_type: str, body: bytes) -> None:
    """X-6: `record` stores event data that is not JSON, and the event can be sent again with the same body."""
    key = f"poison-{content_type}"
    headers = {"ce-specversion": "1.0", "ce-id": key, "ce-source": "/x", "ce-type": "x", "content-type": content_type}

    response = functions.clients["record"].post("/record", headers=headers, data=body)

    (entry,) = get_journal().select(Query(ids=(key,)))
    assert response.status_code == 204
    assert encode_binary(entry.event).body == body


@pytest.mark.parametrize("attribute", ["id", "source", "knativeerrordest"])
def test_record_answers_400_to_oversized_attribute(functions: Functions, attribute: str) -> None:
    """X-6: `record` answers 400 to an event attribute that is too long for a PostgreSQL index."""
    event = CloudEvent({**build_tick().get_attributes(), attribute: "x" * 600}, {})

    response = functions.post("record", event)

    assert response.status_code == 400
    assert "is longer than 512 bytes" in response.text


def test_journal_is_persistent(functions: Functions) -> None:
    """X-2: the journal still contains a recorded event after another process opens it."""
    event = build_tick()
    functions.post("record", event, mode="structured")

    with closing(Journal.from_environment()) as reopened:
        assert len(reopened.select(Query(ids=(event.get_id(),)))) == 1


def test_attempts_are_stored_with_event(functions: Functions) -> None:
    """X-6: for an `attempts.made` event, `record` stores each attempt with the event that the attempt processed.

    `record` does not store the `attempts.made` event itself.
    """
    event = build_tick()
    attempt = Attempt(event.get_source(), event.get_id(), "resync", datetime.now(timezone.utc), 0.25, 204)
    attempts = build_attempts_event([attempt])

    statuses = [functions.post("record", posted_event).status_code for posted_event in (attempts, event, attempts)]

    (entry,) = get_journal().select(Query(ids=(event.get_id(),)))
    assert statuses == [204] * 3
    assert entry.attempts == (attempt,)
    assert get_journal().select(Query(ids=(attempts.get_id(),))) == []


@pytest.mark.parametrize("source", ["urn:somebody", events.SOURCE_PREFIX + "attempts"])
def test_record_answers_403_to_unsigned_attempts(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """docs/security.md: `record` answers 403 to attempts without a valid signature, whatever their source."""
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    event = build_tick()
    attempt = Attempt(event.get_source(), event.get_id(), "resync", datetime.now(timezone.utc), 0.25, 204)
    attempts = build_attempts_event([attempt])
    unsigned = CloudEvent({**attempts.get_attributes(), "source": source}, attempts.get_data())

    assert functions.post("record", unsigned).status_code == 403
    assert functions.post("record", sign_event(attempts)).status_code == 204


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "data.attempts is missing"),
        ({"attempts": [{}]}, "data.attempts[0].source"),
        ({"attempts": [{**ATTEMPT, "at": "soon"}]}, "'soon' is not an ISO 8601 time"),
        ({"attempts": [{**ATTEMPT, "at": "0001-01-01T00:00:00+23:59"}]}, "is not an ISO 8601 time"),
        ({"attempts": [{**ATTEMPT, "at": "9999-12-31T23:59:59.999999Z"}]}, "is out of range"),
        ({"attempts": [{**ATTEMPT, "at": "0001-01-01T00:00:00Z"}]}, "is out of range"),
        ({"attempts": [{**ATTEMPT, "status": 10**30}]}, "is out of range"),
        ({"attempts": [{**ATTEMPT, "seconds": 10**400}]}, "is out of range"),
        ({"attempts": [{**ATTEMPT, "replies": ["x"]}]}, "data.attempts[0].replies.id"),
        ({"attempts": [{**ATTEMPT, "event": "x" * 600}]}, "event is longer than 512 bytes"),
    ],
)
def test_record_answers_400_to_malformed_attempts(functions: Functions, data: dict[str, object], message: str) -> None:
    """X-6: `record` answers 400 to malformed attempts and names the field, so that no broker retries them."""
    event = CloudEvent({**build_attempts_event([]).get_attributes()}, data)

    response = functions.post("record", event)

    assert response.status_code == 400
    assert message in response.text


def test_dry_run_event_is_not_stored(functions: Functions) -> None:
    """X-2: `record` does not store a replayed event with `dryrun`."""
    event = build_tick()
    dry_run_event = CloudEvent({**event.get_attributes(), "dryrun": "All", "replay": "1"}, event.get_data())

    assert functions.post("record", dry_run_event).status_code == 204
    assert get_journal().select(Query(ids=(event.get_id(),))) == []
