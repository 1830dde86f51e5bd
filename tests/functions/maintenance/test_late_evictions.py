"""Tests of evictions that are granted after their pass has ended: each is recorded in the journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cloudevents.core.bindings.http import HTTPMessage
from flask.testing import FlaskClient
from prometheus_client import REGISTRY

from eventing import events, replay_extensions
from eventing.journal.entries import Attempt
from eventing.http_binding import binary
from functions.app import FUNCTIONS, create_app
from functions.maintenance import evict
from functions.maintenance.eviction_reports import LateEvictions
from kube.client import eviction_batch, eviction_tracker
from kube.evictions import eviction_path, pod_path
from kube.pods import is_terminating
from tests.functions.conftest import Functions, told
from tests.functions.request_hooks import before
from tests.receiver import Receiver
from tests.workload import Workload

pytestmark = pytest.mark.slow


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateEvictions]:
    """Yield the `LateEvictions` of `evict`, whose passes do not wait for responses."""
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
    """Return a test client of `evict`, which publishes its attempts to `recorder`.

    The functions that prepare the node are created before, so they publish no attempts.
    """
    for step in ("begin", "cordon", "taint"):
        functions.clients[step]
    monkeypatch.setenv("RECORD", f"{recorder.url}/record")
    return create_app(functions.clusters["evict"]).test_client()


def evicted(recorder: Receiver) -> list[list[str]]:
    """Return the names of the evicted pods in each published attempt."""
    return [named(one) for one in told(recorder)]


def named(attempt: Attempt) -> list[str]:
    return [pod["name"] for reply in attempt.replies for pod in reply["data"].get("evicted", [])]


def counted() -> float:
    return REGISTRY.get_sample_value("nodemaintenance_evictions_total", {"outcome": "evicted"}) or 0.0


def test_what_no_look_has_told_is_published_when_the_process_ends(
    functions: Functions, client: FlaskClient, recorder: Receiver, late: LateEvictions, work: Workload
) -> None:
    """Late evictions are published as a reply to their own event when the process ends."""
    node = work.node()
    work.pods(node, "a", "b")
    tainted, so_far = functions.prepare(work.maintenance(node)), counted()
    message = binary(tainted)

    response = client.post("/evict", data=message.body, headers=message.headers)
    late.close()

    recorder.wait(lambda: len(evicted(recorder)) == 2)
    first, last = evicted(recorder)
    assert (response.headers["ce-type"], first, sorted(last)) == (events.PODS_EVICTED, [], ["a", "b"])
    assert counted() - so_far == 2
    late.close()
    assert counted() - so_far == 2


def test_what_no_look_asks_for_is_published_after_some_time(
    functions: Functions, client: FlaskClient, recorder: Receiver, work: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late evictions of a node are published together after some time if no pass of this process follows."""
    monkeypatch.setattr(eviction_tracker, "ANSWERED_SECONDS", 1.0)
    monkeypatch.setattr(eviction_tracker, "KEPT_SECONDS", 0.5)
    node = work.node()
    work.pods(node, "a", "b")
    message = binary(functions.prepare(work.maintenance(node)))

    client.post("/evict", data=message.body, headers=message.headers)

    recorder.wait(lambda: len(evicted(recorder)) == 2)
    assert sorted(evicted(recorder)[-1]) == ["a", "b"]


def test_of_a_dry_run_nothing_comes_late(
    functions: Functions, client: FlaskClient, recorder: Receiver, late: LateEvictions, work: Workload
) -> None:
    """Dry runs publish no late evictions."""
    message = replayed(functions, work, dry_run=True)

    client.post("/evict", data=message.body, headers=message.headers)
    late.close()

    recorder.wait(lambda: len(evicted(recorder)) == 1)
    assert evicted(recorder) == [[]]


def test_a_replay_beside_a_drain_takes_no_look_s_place(
    functions: Functions, client: FlaskClient, recorder: Receiver, late: LateEvictions, work: Workload
) -> None:
    """Replays during a drain do not report its evictions, which are published for their own event and counted."""
    node, go = work.node(), threading.Event()
    (pod,) = work.pods(node, "a")
    tainted, so_far = functions.prepare(work.maintenance(node)), counted()

    with before(functions.clusters["evict"], "POST", eviction_path(pod), lambda: go.wait(10)):
        for event in (tainted, replay_extensions.marked(tainted, "again", dry_run=False)):
            message = binary(event)
            client.post("/evict", data=message.body, headers=message.headers)
        go.set()
    late.close()

    assert_told_once(recorder)
    assert counted() - so_far == 1


@pytest.mark.parametrize("finalizers", [(), ("test.nodemaintenance.dev/stay",)], ids=["gone", "ending"])
def test_a_replay_takes_nothing_that_was_granted_late(
    functions: Functions,
    client: FlaskClient,
    recorder: Receiver,
    late: LateEvictions,
    work: Workload,
    finalizers: tuple[str, ...],
) -> None:
    """Replays do not report the drain's late evictions, even if the replay finds no pod."""
    node = work.node()
    (pod,) = work.pods(node, "a", finalizers=finalizers)
    tainted, so_far = functions.prepare(work.maintenance(node)), counted()
    message, again = binary(tainted), binary(replay_extensions.marked(tainted, "again", dry_run=False))

    client.post("/evict", data=message.body, headers=message.headers)
    work.wait_for(pod_path(pod), lambda found: found is None or (bool(finalizers) and is_terminating(found)))
    client.post("/evict", data=again.body, headers=again.headers)
    late.close()

    assert_told_once(recorder)
    assert counted() - so_far == 1


def test_what_a_replay_alone_has_sent_is_told_as_its_own(
    functions: Functions, client: FlaskClient, recorder: Receiver, late: LateEvictions, work: Workload
) -> None:
    """Replays publish the late evictions that they sent themselves; the metrics do not count them."""
    message = replayed(functions, work, dry_run=False)
    so_far = counted()

    client.post("/evict", data=message.body, headers=message.headers)
    late.close()

    recorder.wait(lambda: len(told(recorder)) == 2)
    assert [(one.replay, named(one)) for one in told(recorder)] == [("again", []), ("again", ["a"])]
    assert counted() == so_far


def replayed(functions: Functions, work: Workload, *, dry_run: bool) -> HTTPMessage:
    """Build the HTTP message that replays `node.tainted` for a node with one pod."""
    node = work.node()
    work.pods(node, "a")
    return binary(replay_extensions.marked(functions.prepare(work.maintenance(node)), "again", dry_run=dry_run))


def assert_told_once(recorder: Receiver) -> None:
    """Assert that three attempts are published, and that only one, which is not a replay's, names the pod."""
    recorder.wait(lambda: len(told(recorder)) == 3)
    assert sorted((one.replay, named(one)) for one in told(recorder)) == [("", []), ("", ["a"]), ("again", [])]
