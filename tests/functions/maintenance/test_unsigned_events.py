"""Tests of forged events: an event without the product's signature changes neither a status nor the journal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from werkzeug.test import TestResponse

from eventing import events, replay_extensions
from eventing.journal.entries import Attempt, attempts_event, moment
from eventing.journal.store import Query
from eventing.signatures import EXTENSION, KEY, is_ours, signed
from eventing.http_binding import BATCH, STRUCTURED, binary, received
from functions.event_data import data_of
from functions.record import journal
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, said, updated
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
    """Set the signing key of the product."""
    monkeypatch.setenv(KEY, "secret")


@pytest.mark.parametrize(("kind", "data"), FORGED.values(), ids=FORGED)
def test_a_forged_event_changes_no_status(
    functions: Functions, work: Workload, audit: Audit, kind: str, data: dict[str, Any]
) -> None:
    """X-2: `status` answers 403 to an unsigned event and writes nothing."""
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
    """Rule 8: `evict` answers 403 to an unsigned hint and evicts no pod."""
    node = work.node()
    work.pods(node, "web", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.prepare(item)

    answer = functions.post("evict", said(kind, item))

    assert answer.status_code == 403
    assert audit.evictions() == []


def replayed(functions: Functions, step: str, event: BaseCloudEvent) -> TestResponse:
    """Post the event and ask for the replies of its replay."""
    message = binary(event)
    return functions.clients[step].post(f"/{step}", data=message.body, headers={**message.headers, "accept": BATCH})


def without_marks(response: TestResponse) -> BaseCloudEvent:
    """Return the only reply of a replay without its replay extensions, so that it resembles a new event."""
    (answer,) = json.loads(response.data)
    stripped = {name: value for name, value in answer.items() if name not in (replay_extensions.REPLAY, replay_extensions.DRY_RUN)}
    return received({"content-type": STRUCTURED}, json.dumps(stripped).encode())


HINTS = {"cordon": events.NODE_DRIFTED, "taint": events.NODE_CORDONED, "evict": events.NODE_TAINTED}


@pytest.mark.parametrize("step", HINTS)
def test_what_would_be_done_is_no_news_under_our_signature(functions: Functions, work: Workload, step: str) -> None:
    """X-2: the replies of a dry run are not signed, so no function accepts them as new events."""
    node = work.node()
    work.pods(node, "web", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.chain(item, "begin", *(["cordon", "taint"] if step == "evict" else []))
    response = replayed(functions, step, replay_extensions.marked(said(HINTS[step], item), "r1", dry_run=True))
    assert response.status_code == 200

    forged = without_marks(response)

    assert EXTENSION not in forged.get_attributes()
    takers = ["record", *(["status"] if step == "evict" else [])]
    assert {taker: functions.post(taker, forged).status_code for taker in takers} == dict.fromkeys(takers, 403)


def test_what_a_replay_has_done_is_signed_and_asked_for_by_what_is(functions: Functions, work: Workload) -> None:
    """X-2: a replay without `dryrun` requires a signed event, and its replies are signed."""
    node = work.node()
    work.pods(node, "web", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    tainted = functions.prepare(item)

    refused, done = (
        replayed(functions, "evict", replay_extensions.marked(event, "r1", dry_run=False))
        for event in (said(events.NODE_TAINTED, item), tainted)
    )

    assert (refused.status_code, done.status_code) == (403, 200)
    assert is_ours(without_marks(done))


def test_an_error_is_of_one_that_has_begun_where_our_own_tick_says_so(functions: Functions, work: Workload) -> None:
    """X-2: `begin` copies the field `begun` to its failure event only if the hint is signed."""
    node = work.node()
    functions.begin(work.maintenance(node))
    hint = said(events.MAINTENANCE_FOUND, work.maintenance(node), data={"begun": True})

    forged, ours = (functions.answer("begin", event) for event in (hint, signed(hint)))

    assert forged is not None
    assert ours is not None
    assert ("begun" in data_of(forged), data_of(ours)["begun"]) == (False, True)


def test_an_error_is_taken_from_the_function_that_met_it(functions: Functions, work: Workload) -> None:
    """NMO-13: `status` accepts a step's signed failure event and writes its error."""
    item = work.maintenance("nowhere")
    failed = functions.answer("begin", added(item))
    assert failed is not None

    functions.answer("status", failed)

    assert work.again(item)["status"]["lastError"] == 'nodes "nowhere" not found'


@pytest.mark.parametrize("node", ["a,b=c", "call this number", "..", "x" * 300])
def test_no_function_signs_a_stranger_s_words(functions: Functions, work: Workload, node: str) -> None:
    """X-2: a step answers 400 to an invalid node name, so that no signed error message quotes it."""
    item = work.maintenance(work.node())
    functions.begin(item)
    hint = said(events.NODE_TAINTED, {**item, "spec": {"nodeName": node}})

    for step in ("cordon", "taint", "evict"):
        forged = said({"cordon": events.NODE_DRIFTED, "taint": events.NODE_CORDONED}.get(step, hint.get_type()), item)
        answer = functions.post(step, signed(type(forged)(forged.get_attributes(), hint.get_data())))
        assert answer.status_code == 400


def test_a_version_of_next_year_keeps_nobody_waiting(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-6: an unsigned hint with a future resourceVersion gets 403; a dry run ignores the resourceVersion."""
    node = work.node()
    work.pods(node, "web", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.chain(item, "begin", "cordon", "taint")
    hint = said(events.PODS_GONE, item, data={"podsVersion": "9" * 18})

    answers = [functions.post("evict", event) for event in (hint, replay_extensions.marked(hint, "r1", dry_run=True))]

    assert [answer.status_code for answer in answers] == [403, 204]
    assert [entry["requestURI"].partition("?")[2] for entry in audit.evictions()] == ["dryRun=All"]


def test_history_shows_nothing_that_nobody_did(functions: Functions, work: Workload) -> None:
    """X-6: `record` rejects unsigned attempts, and unsigned events whose source is the product."""
    item = work.maintenance("nowhere")
    forged, honest = said(events.NODE_DRAINED, item), updated(item)
    made = Attempt(honest.get_source(), honest.get_id(), "restore", moment("2026-01-01T00:00:00Z"), 0.1, 204)

    statuses = [functions.post("record", event).status_code for event in (forged, attempts_event([made]), honest)]

    (entry,) = journal().select(Query(ids=(forged.get_id(), honest.get_id())))
    assert statuses == [403, 403, 204]
    assert (entry.event.get_id(), entry.attempts) == (honest.get_id(), ())
