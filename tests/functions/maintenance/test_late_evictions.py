"""Evictions that are granted behind the look that sent them: each is in the journal, whoever looks next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from flask.testing import FlaskClient
from prometheus_client import REGISTRY

from eventing import events, marks
from eventing.journal.entries import Attempt
from eventing.wire import binary
from functions.app import FUNCTIONS, create_app
from functions.maintenance import evict
from functions.maintenance.batches import LateEvictions
from kube.door import eviction_batch, inflight_evictions
from tests.functions.conftest import Functions, told
from tests.receiver import Receiver
from tests.workload import Workload


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateEvictions]:
    """Give what `evict` has of them from now on; its looks wait for no answer."""
    made = LateEvictions()
    monkeypatch.setattr(evict, "LATE", made)
    monkeypatch.setitem(FUNCTIONS, "evict", replace(FUNCTIONS["evict"], late=made))
    monkeypatch.setattr(eviction_batch, "OVERSLEPT_SECONDS", 0.0)
    yield made
    made.close()


@pytest.fixture
def client(
    functions: Functions, recorder: Receiver, late: LateEvictions, monkeypatch: pytest.MonkeyPatch
) -> FlaskClient:
    """Give `evict`, which publishes its attempts."""
    monkeypatch.setenv("RECORD", f"{recorder.url}/record")
    return create_app(functions.clusters["evict"]).test_client()


def evicted(recorder: Receiver) -> list[list[str]]:
    """The pods that each published answer names."""
    return [named(one) for one in told(recorder)]


def named(attempt: Attempt) -> list[str]:
    return [pod["name"] for reply in attempt.replies for pod in reply["data"]["evicted"]]


def counted() -> float:
    return REGISTRY.get_sample_value("nodemaintenance_evictions_total", {"outcome": "evicted"}) or 0.0


def test_what_no_look_has_told_is_published_when_the_process_ends(
    functions: Functions, client: FlaskClient, recorder: Receiver, late: LateEvictions, work: Workload
) -> None:
    """As an answer to the same event; what the API server is about to answer is awaited."""
    node = work.node()
    work.pods(node, "a", "b")
    tainted, before = functions.prepare(work.maintenance(node)), counted()
    message = binary(tainted)

    response = client.post("/evict", data=message.body, headers=message.headers)
    late.close()

    recorder.wait(lambda: len(evicted(recorder)) == 2)
    first, last = evicted(recorder)
    assert (response.headers["ce-type"], first, sorted(last)) == (events.PODS_EVICTED, [], ["a", "b"])
    assert counted() - before == 2
    late.close()
    assert counted() - before == 2


def test_what_no_look_asks_for_is_published_after_some_time(
    functions: Functions, client: FlaskClient, recorder: Receiver, work: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next looks are another process's; pods of one node are told together."""
    monkeypatch.setattr(inflight_evictions, "ANSWERED_SECONDS", 1.0)
    monkeypatch.setattr(inflight_evictions, "KEPT_SECONDS", 0.5)
    node = work.node()
    work.pods(node, "a", "b")
    message = binary(functions.prepare(work.maintenance(node)))

    client.post("/evict", data=message.body, headers=message.headers)

    recorder.wait(lambda: len(evicted(recorder)) == 2)
    assert sorted(evicted(recorder)[-1]) == ["a", "b"]


def test_of_a_dry_run_nothing_comes_late(
    functions: Functions, client: FlaskClient, recorder: Receiver, late: LateEvictions, work: Workload
) -> None:
    """What it would evict is there still."""
    node = work.node()
    work.pods(node, "a")
    message = binary(marks.marked(functions.prepare(work.maintenance(node)), "again", dry_run=True))

    client.post("/evict", data=message.body, headers=message.headers)
    late.close()

    recorder.wait(lambda: len(recorder.requests) == 1)
    assert evicted(recorder) == [[]]
