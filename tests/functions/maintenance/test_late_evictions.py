"""Tests for late evictions, whose response arrives after their pass has ended; each is recorded in the journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cloudevents.core.bindings.http import HTTPMessage
from flask.testing import FlaskClient
from prometheus_client import REGISTRY

from eventing import events, extensions
from eventing.http_binding import encode_binary
from eventing.journal.entries import Attempt
from functions.app import FUNCTIONS, create_app
from functions.maintenance import evict
from functions.maintenance.eviction_reports import LateEvictionPublisher
from kube.evictions import executor, tracker
from kube.evictions.requests import build_eviction_path, build_pod_path
from kube.pods import is_terminating
from localcluster.http_receiver import Receiver
from tests.functions.conftest import Functions, parse_received_attempts
from tests.functions.request_hooks import run_before_request
from tests.workload import Workload

pytestmark = pytest.mark.slow


@pytest.fixture
def late_eviction_publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateEvictionPublisher]:
    """Yield the `LateEvictionPublisher` of `evict`, and make `evict` return without waiting for eviction responses."""
    new_late_eviction_publisher = LateEvictionPublisher()
    monkeypatch.setattr(evict, "LATE_EVICTION_PUBLISHER", new_late_eviction_publisher)
    monkeypatch.setitem(FUNCTIONS, "evict", replace(FUNCTIONS["evict"], late_replies=new_late_eviction_publisher))
    monkeypatch.setattr(executor, "RESPONSE_WAIT_SECONDS", 0.0)
    yield new_late_eviction_publisher
    new_late_eviction_publisher.close()


@pytest.fixture
def evict_client(
    functions: Functions,
    attempts_receiver: Receiver,
    late_eviction_publisher: LateEvictionPublisher,
    monkeypatch: pytest.MonkeyPatch,
) -> FlaskClient:
    """Return a test client of `evict`, which publishes its attempts to `attempts_receiver`.

    The functions that prepare the node are created before, so they publish no attempts.
    """
    for step in ("begin", "cordon", "taint"):
        functions.clients[step]
    monkeypatch.setenv("RECORD", f"{attempts_receiver.url}/record")
    return create_app(functions.clusters["evict"]).test_client()


def list_evicted_pod_names(attempts_receiver: Receiver) -> list[list[str]]:
    """Return the names of the evicted pods in each published attempt."""
    return [get_evicted_pod_names(attempt) for attempt in parse_received_attempts(attempts_receiver)]


def get_evicted_pod_names(attempt: Attempt) -> list[str]:
    return [pod["name"] for reply in attempt.replies for pod in reply["data"].get("evicted", [])]


def read_evicted_count() -> float:
    return REGISTRY.get_sample_value("nodemaintenance_evictions_total", {"outcome": "evicted"}) or 0.0


def test_late_evictions_are_published_at_process_end(
    functions: Functions,
    evict_client: FlaskClient,
    attempts_receiver: Receiver,
    late_eviction_publisher: LateEvictionPublisher,
    workload: Workload,
) -> None:
    """Check that evictions granted after their pass are published at process end, as a reply to that pass's event."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", "b")
    tainted_event, count_before = functions.run_until_tainted(workload.create_maintenance(node)), read_evicted_count()
    message = encode_binary(tainted_event)

    response = evict_client.post("/evict", data=message.body, headers=message.headers)
    late_eviction_publisher.close()

    attempts_receiver.wait_until(lambda: len(list_evicted_pod_names(attempts_receiver)) == 2)
    first, last = list_evicted_pod_names(attempts_receiver)
    assert (response.headers["ce-type"], first, sorted(last)) == (events.PODS_EVICTED, [], ["a", "b"])
    assert read_evicted_count() - count_before == 2
    late_eviction_publisher.close()
    assert read_evicted_count() - count_before == 2


def test_late_evictions_are_published_after_delay(
    functions: Functions,
    evict_client: FlaskClient,
    attempts_receiver: Receiver,
    workload: Workload,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that evictions granted after their pass are published together after a delay if no further pass does so."""
    monkeypatch.setattr(tracker, "EVICTION_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(tracker, "OUTCOME_TTL_SECONDS", 0.5)
    node = workload.take_node()
    workload.create_bare_pods(node, "a", "b")
    message = encode_binary(functions.run_until_tainted(workload.create_maintenance(node)))

    evict_client.post("/evict", data=message.body, headers=message.headers)

    attempts_receiver.wait_until(lambda: len(list_evicted_pod_names(attempts_receiver)) == 2)
    assert sorted(list_evicted_pod_names(attempts_receiver)[-1]) == ["a", "b"]


def test_dry_run_replay_publishes_no_late_evictions(
    functions: Functions,
    evict_client: FlaskClient,
    attempts_receiver: Receiver,
    late_eviction_publisher: LateEvictionPublisher,
    workload: Workload,
) -> None:
    """Check that a replay in dry-run mode publishes no evictions after its pass has ended."""
    message = build_replay_message(functions, workload, dry_run=True)

    evict_client.post("/evict", data=message.body, headers=message.headers)
    late_eviction_publisher.close()

    attempts_receiver.wait_until(lambda: len(list_evicted_pod_names(attempts_receiver)) == 1)
    assert list_evicted_pod_names(attempts_receiver) == [[]]


def test_replay_during_drain_does_not_report_evictions_of_drain(
    functions: Functions,
    evict_client: FlaskClient,
    attempts_receiver: Receiver,
    late_eviction_publisher: LateEvictionPublisher,
    workload: Workload,
) -> None:
    """Check that a replay during a drain does not report the drain's evictions, which another event caused."""
    node, may_evict = workload.take_node(), threading.Event()
    (pod,) = workload.create_bare_pods(node, "a")
    tainted_event, count_before = functions.run_until_tainted(workload.create_maintenance(node)), read_evicted_count()

    with run_before_request(functions.clusters["evict"], "POST", build_eviction_path(pod), lambda: may_evict.wait(10)):
        for event in (tainted_event, extensions.add_replay_extensions(tainted_event, "again", dry_run=False)):
            message = encode_binary(event)
            evict_client.post("/evict", data=message.body, headers=message.headers)
        may_evict.set()
    late_eviction_publisher.close()

    assert_eviction_is_published_once(attempts_receiver)
    assert read_evicted_count() - count_before == 1


@pytest.mark.parametrize("finalizers", [(), ("test.nodemaintenance.dev/stay",)], ids=["gone", "terminating"])
def test_replay_does_not_report_late_evictions_of_drain(
    functions: Functions,
    evict_client: FlaskClient,
    attempts_receiver: Receiver,
    late_eviction_publisher: LateEvictionPublisher,
    workload: Workload,
    finalizers: tuple[str, ...],
) -> None:
    """Check that a replay does not report evictions that the drain's pass sent and that were granted after that pass.

    The replay finds no pods to evict.
    """
    node = workload.take_node()
    (pod,) = workload.create_bare_pods(node, "a", finalizers=finalizers)
    tainted_event, count_before = functions.run_until_tainted(workload.create_maintenance(node)), read_evicted_count()
    message, replay_message = (
        encode_binary(tainted_event),
        encode_binary(extensions.add_replay_extensions(tainted_event, "again", dry_run=False)),
    )

    evict_client.post("/evict", data=message.body, headers=message.headers)
    workload.wait_for_object(
        build_pod_path(pod), lambda current: current is None or (bool(finalizers) and is_terminating(current))
    )
    evict_client.post("/evict", data=replay_message.body, headers=replay_message.headers)
    late_eviction_publisher.close()

    assert_eviction_is_published_once(attempts_receiver)
    assert read_evicted_count() - count_before == 1


def test_late_evictions_of_replay_are_published_but_not_counted(
    functions: Functions,
    evict_client: FlaskClient,
    attempts_receiver: Receiver,
    late_eviction_publisher: LateEvictionPublisher,
    workload: Workload,
) -> None:
    """Check that a replay's evictions granted after its end are published, and that the metrics do not count them."""
    message = build_replay_message(functions, workload, dry_run=False)
    count_before = read_evicted_count()

    evict_client.post("/evict", data=message.body, headers=message.headers)
    late_eviction_publisher.close()

    attempts_receiver.wait_until(lambda: len(parse_received_attempts(attempts_receiver)) == 2)
    assert [
        (attempt.replay, get_evicted_pod_names(attempt)) for attempt in parse_received_attempts(attempts_receiver)
    ] == [
        ("again", []),
        ("again", ["a"]),
    ]
    assert read_evicted_count() == count_before


def build_replay_message(functions: Functions, workload: Workload, *, dry_run: bool) -> HTTPMessage:
    """Build the HTTP message that replays `node.tainted` for a node with one pod."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a")
    return encode_binary(
        extensions.add_replay_extensions(
            functions.run_until_tainted(workload.create_maintenance(node)), "again", dry_run=dry_run
        )
    )


def assert_eviction_is_published_once(attempts_receiver: Receiver) -> None:
    """Assert that three attempts are published, and that only an attempt of the drain contains the evicted pod."""
    attempts_receiver.wait_until(lambda: len(parse_received_attempts(attempts_receiver)) == 3)
    assert sorted(
        (attempt.replay, get_evicted_pod_names(attempt)) for attempt in parse_received_attempts(attempts_receiver)
    ) == [
        ("", []),
        ("", ["a"]),
        ("again", []),
    ]
