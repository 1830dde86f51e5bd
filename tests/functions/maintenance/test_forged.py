"""What somebody may post who is none of our programs: it changes no status and no history."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from werkzeug.test import TestResponse

from eventing import events, marks
from eventing.journal.entries import Attempt, attempts_event, moment
from eventing.journal.store import Query
from eventing.signatures import EXTENSION, KEY, is_ours, signed
from eventing.wire import BATCH, STRUCTURED, binary, received
from functions.data import data_of
from functions.record import journal
from tests.functions.conftest import Functions
from tests.functions.hints import added, said, updated
from tests.workload import Audit, Workload

pytestmark = pytest.mark.slow

POD = {"namespace": "default", "name": "web", "uid": "1"}
FORGED: dict[str, tuple[str, dict[str, Any]]] = {
    "maintenance.failed": (events.MAINTENANCE_FAILED, {"step": "cordon", "error": "call this number"}),
    "pods.evicted": (events.PODS_EVICTED, {"blocked": [{**POD, "reason": "Forged"}], "error": "call this number"}),
    "node.drained": (events.NODE_DRAINED, {}),
    "pods.gone": (events.PODS_GONE, {"podsVersion": "1"}),
    "maintenance.begun": (events.MAINTENANCE_BEGUN, {"totalpods": 1, "evictionPods": 1}),
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the programs share."""
    monkeypatch.setenv(KEY, "secret")


@pytest.mark.parametrize(("kind", "data"), FORGED.values(), ids=FORGED)
def test_a_forged_event_changes_no_status(
    functions: Functions, work: Workload, audit: Audit, kind: str, data: dict[str, Any]
) -> None:
    """X-2: whoever may post names a real maintenance; nothing is written, and the answer is not retried."""
    node = work.node()
    work.pods(node, "web", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.answer("status", functions.begin(item))
    before, writes = work.again(item), len(audit.writes_by())

    answer = functions.post("status", said(kind, item, data=data))

    assert answer.status_code == 403
    assert work.again(item) == before
    assert len(audit.writes_by()) == writes


@pytest.mark.parametrize("kind", [events.PODS_GONE, events.PODS_CAME, events.NODE_TAINTED, events.PODS_EVICTED])
def test_a_forged_hint_begins_no_look(functions: Functions, work: Workload, audit: Audit, kind: str) -> None:
    """Rule 8: who posts it would have the answer to the hints that its look absorbs, and the status would not."""
    node = work.node()
    work.pods(node, "web", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.prepare(item)

    answer = functions.post("evict", said(kind, item))

    assert answer.status_code == 403
    assert audit.evictions() == []


def replayed(functions: Functions, step: str, event: BaseCloudEvent) -> TestResponse:
    """What is answered to whoever asks for the answers to a replay."""
    message = binary(event)
    return functions.clients[step].post(f"/{step}", data=message.body, headers={**message.headers, "accept": BATCH})


def without_marks(response: TestResponse) -> BaseCloudEvent:
    """The one event that was answered, made to look like news."""
    (answer,) = json.loads(response.data)
    stripped = {name: value for name, value in answer.items() if name not in (marks.REPLAY, marks.DRY_RUN)}
    return received({"content-type": STRUCTURED}, json.dumps(stripped).encode())


HINTS = {"cordon": events.NODE_DRIFTED, "taint": events.NODE_CORDONED, "evict": events.NODE_TAINTED}


@pytest.mark.parametrize("step", HINTS)
def test_what_would_be_done_is_no_news_under_our_signature(functions: Functions, work: Workload, step: str) -> None:
    """X-2: a dry run is anybody's to ask for; what it answers did not happen, and is believed of nobody."""
    node = work.node()
    work.pods(node, "web", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.chain(item, "begin", *(["cordon", "taint"] if step == "evict" else []))
    response = replayed(functions, step, marks.marked(said(HINTS[step], item), "r1", dry_run=True))
    assert response.status_code == 200

    forged = without_marks(response)

    assert EXTENSION not in forged.get_attributes()
    takers = ["record", *(["status"] if step == "evict" else [])]
    assert {taker: functions.post(taker, forged).status_code for taker in takers} == dict.fromkeys(takers, 403)


def test_what_a_replay_has_done_is_signed_and_asked_for_by_what_is(functions: Functions, work: Workload) -> None:
    """X-2: without `dryrun` it is done, so it is true; a replay of an event that is not ours evicts nobody."""
    node = work.node()
    work.pods(node, "web", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    tainted = functions.prepare(item)

    refused, done = (
        replayed(functions, "evict", marks.marked(event, "r1", dry_run=False))
        for event in (said(events.NODE_TAINTED, item), tainted)
    )

    assert (refused.status_code, done.status_code) == (403, 200)
    assert is_ours(without_marks(done))


def test_an_error_is_of_one_that_has_begun_where_our_own_tick_says_so(functions: Functions, work: Workload) -> None:
    """X-2: of a hint that is not ours the words are not signed: told late, they would spoil the status of a drain."""
    node = work.node()
    functions.begin(work.maintenance(node))
    hint = said(events.MAINTENANCE_FOUND, work.maintenance(node), data={"begun": True})

    forged, ours = (functions.answer("begin", event) for event in (hint, signed(hint)))

    assert forged is not None
    assert ours is not None
    assert ("begun" in data_of(forged), data_of(ours)["begun"]) == (False, True)


def test_an_error_is_taken_from_the_function_that_met_it(functions: Functions, work: Workload) -> None:
    """NMO-13: a step's own event of failure is signed, and its words are in the status."""
    item = work.maintenance("nowhere")
    failed = functions.answer("begin", added(item))
    assert failed is not None

    functions.answer("status", failed)

    assert work.again(item)["status"]["lastError"] == 'nodes "nowhere" not found'


@pytest.mark.parametrize("node", ["a,b=c", "call this number", "..", "x" * 300])
def test_no_function_signs_a_stranger_s_words(functions: Functions, work: Workload, node: str) -> None:
    """X-2: what the API server would quote in its refusal is refused before it is asked, whoever has emitted it."""
    item = work.maintenance(work.node())
    functions.begin(item)
    hint = said(events.NODE_TAINTED, {**item, "spec": {"nodeName": node}})

    for step in ("cordon", "taint", "evict"):
        forged = said({"cordon": events.NODE_DRIFTED, "taint": events.NODE_CORDONED}.get(step, hint.get_type()), item)
        answer = functions.post(step, signed(type(forged)(forged.get_attributes(), hint.get_data())))
        assert answer.status_code == 400


def test_a_version_of_next_year_keeps_nobody_waiting(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-6: the API server would wait for it and answer 504, ten times. It is refused; in a dry replay, where events may
    be of another installation, it is ignored.
    """
    node = work.node()
    work.pods(node, "web", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.chain(item, "begin", "cordon", "taint")
    hint = said(events.PODS_GONE, item, data={"podsVersion": "9" * 18})

    answers = [functions.post("evict", event) for event in (hint, marks.marked(hint, "r1", dry_run=True))]

    assert [answer.status_code for answer in answers] == [403, 204]
    assert [entry["requestURI"].partition("?")[2] for entry in audit.evictions()] == ["dryRun=All"]


def test_history_shows_nothing_that_nobody_did(functions: Functions, work: Workload) -> None:
    """X-6: an event under our name, and an attempt, are recorded when they are ours; what others emit, as before."""
    item = work.maintenance("nowhere")
    forged, honest = said(events.NODE_DRAINED, item), updated(item)
    made = Attempt(honest.get_source(), honest.get_id(), "restore", moment("2026-01-01T00:00:00Z"), 0.1, 204)

    statuses = [functions.post("record", event).status_code for event in (forged, attempts_event([made]), honest)]

    (entry,) = journal().select(Query(ids=(forged.get_id(), honest.get_id())))
    assert statuses == [403, 403, 204]
    assert (entry.event.get_id(), entry.attempts) == (honest.get_id(), ())
