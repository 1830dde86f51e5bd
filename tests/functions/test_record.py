"""`record` and its journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing.journal import Journal
from eventing.wire import binary
from functions.record import journal
from tests.functions.conftest import Functions
from tests.functions.hints import added, tick
from tests.workload import Audit, Workload


def test_every_event_is_kept_once(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2, X-1: every type is taken, a duplicate is kept once, and nothing is written to the cluster."""
    item = work.maintenance("nowhere")
    events = [added(item), tick()]

    statuses = [functions.post("record", event).status_code for event in [*events, *events]]

    kept = [event.get_id() for event in journal().events()]
    assert statuses == [204] * 4
    assert [kept.count(event.get_id()) for event in events] == [1, 1]
    assert audit.writes_by() == []


def test_a_dead_letter_is_told_from_the_event_that_it_was(functions: Functions) -> None:
    """X-6: an event that is recorded and then comes as a dead letter is kept beside what it was, once."""
    event = tick()
    failed = {"knativeerrordest": "http://cordon/", "knativeerrorcode": "400"}
    dead = CloudEvent({**event.get_attributes(), **failed}, event.get_data())

    for one in (event, dead, event, dead):
        functions.post("record", one)

    first, second = [one for one in journal().events() if one.get_id() == event.get_id()]
    assert first.get_extension("knativeerrordest") is None
    assert {name: second.get_extension(name) for name in failed} == failed


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("application/json", b"{poison"), ("text/plain", b"poison"), ("application/octet-stream", b"\xff\x00")],
)
def test_what_no_function_can_read_is_kept_whole(functions: Functions, content_type: str, body: bytes) -> None:
    """X-6: data that is no JSON is no reason to lose an event; it can be read back, and posted again as it was."""
    key = f"poison-{content_type}"
    headers = {"ce-specversion": "1.0", "ce-id": key, "ce-source": "/x", "ce-type": "x", "content-type": content_type}

    answer = functions.clients["record"].post("/record", headers=headers, data=body)

    (kept,) = [one for one in journal().events() if one.get_id() == key]
    assert answer.status_code == 204
    assert binary(kept).body == body


def test_the_journal_survives(functions: Functions) -> None:
    """X-2: what was recorded is there when another process opens the same file."""
    event = tick()
    functions.post("record", event, mode="structured")
    (_, _, file) = journal()._db.execute("PRAGMA database_list").fetchone()

    reopened = Journal(Path(file))

    assert event.get_id() in [kept.get_id() for kept in reopened.events()]
    reopened.close()
