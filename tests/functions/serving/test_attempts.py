"""Tests for publishing delivery attempts to `record`, in batches and by a separate thread."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from eventing import events
from eventing.dead_letters import parse_dead_letter
from eventing.http_binding import decode_event, encode_binary
from eventing.journal.entries import parse_attempts
from functions.app import create_app
from functions.serving.attempts import (
    BATCH_DELAY_SECONDS,
    MAX_ATTEMPTS_PER_EVENT,
    MAX_QUEUED_ATTEMPT_BYTES,
    MAX_QUEUED_ATTEMPTS,
    MAX_QUEUED_DEAD_LETTERS,
    BoundedQueue,
    OngoingAttempt,
    Publisher,
)
from localcluster.http_receiver import TIMEOUT_SECONDS, ReceivedRequest, Receiver, Response
from tests.functions.conftest import Functions, parse_received_attempts
from tests.functions.event_builders import build_added_event, build_tick
from tests.workload import Workload

DISCARD_URL = "http://127.0.0.1:9"
"""URL with the port of the `discard` service, on which no server listens."""


@pytest.fixture
def flask_client(
    workload: Workload, functions: Functions, attempts_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> FlaskClient:
    """Return a test client for all functions, which publish their attempts to `attempts_receiver`."""
    monkeypatch.setenv("RECORD", f"{attempts_receiver.url}/record")
    return create_app(functions.clusters["begin"]).test_client()


def post_event(test_client: FlaskClient, step: str, event: CloudEvent) -> int:
    message = encode_binary(event)
    return test_client.post(f"/{step}", data=message.body, headers=message.headers).status_code


def add_cordon_attempt(publisher: Publisher, input_event: CloudEvent, status: int = 204) -> None:
    with OngoingAttempt("cordon", input_event, publisher) as attempt:
        attempt.status = status


def test_published_attempt_contains_event_time_status_and_replies(
    workload: Workload, flask_client: FlaskClient, attempts_receiver: Receiver
) -> None:
    """X-6: An attempt of `begin` is published with its event, time, status and complete replies."""
    event = build_added_event(workload.create_maintenance(workload.take_node()))
    before = datetime.now(timezone.utc)

    assert post_event(flask_client, "begin", event) == 200

    attempts_receiver.wait_for_requests("/record")
    (attempt,) = parse_received_attempts(attempts_receiver)
    assert (attempt.source, attempt.event, attempt.function) == (event.get_source(), event.get_id(), "begin")
    assert attempt.status == 200
    assert before <= attempt.at <= datetime.now(timezone.utc)
    assert 0 < attempt.seconds < 5
    (reply,) = attempt.replies
    assert (reply["type"], reply["cause"]) == (events.MAINTENANCE_BEGUN, event.get_id())
    assert reply["data"]["totalpods"] == 0


def test_attempt_of_rejected_event_contains_status_and_error(
    flask_client: FlaskClient, attempts_receiver: Receiver
) -> None:
    """X-6: The attempt of a rejected event contains the status code and the error, and the replay id for a replay."""
    event = CloudEvent(
        {**build_tick().get_attributes(), "type": events.MAINTENANCE_BEGUN, "replay": "r1"}, {"no": "node"}
    )

    assert post_event(flask_client, "cordon", event) == 400

    attempts_receiver.wait_for_requests("/record")
    (attempt,) = parse_received_attempts(attempts_receiver)
    assert (attempt.status, attempt.replies, attempt.replay) == (400, (), "r1")
    assert "data.node is missing" in attempt.error


@pytest.mark.parametrize("replay_id", ["", "redrive 1", "Redrive 1"])
def test_replay_with_id_chosen_by_sender_is_published_as_replay(
    flask_client: FlaskClient, attempts_receiver: Receiver, replay_id: str
) -> None:
    """X-6: A replay is published as a replay even if the sender chose an empty id, or the id of a redrive.

    Otherwise, a sender could mark a dead letter as redriven, or add a dry run to an event's history.
    """
    event = CloudEvent({**build_tick().get_attributes(), "replay": replay_id, "dryrun": "All"}, {})

    assert post_event(flask_client, "cordon", event) == 204

    attempts_receiver.wait_for_requests("/record")
    (attempt,) = parse_received_attempts(attempts_receiver)
    assert (attempt.status, attempt.replay) == (204, f"replay {replay_id}")


@pytest.mark.parametrize("data", [{"no": "node"}, "no object"], ids=["another shape", "no JSON object"])
def test_rejected_event_is_published_as_dead_letter(
    flask_client: FlaskClient, attempts_receiver: Receiver, data: object
) -> None:
    """X-6: A rejected event is published completely, with Knative's attributes for the rejecting URL and the error.

    A broker may treat 400 as a final response and create no dead letter.
    """
    event = CloudEvent({**build_tick().get_attributes(), "type": events.MAINTENANCE_BEGUN}, data)  # type: ignore[arg-type]

    assert post_event(flask_client, "cordon", event) == 400

    dead_letter_events = [
        decode_event(request.headers, request.body, any_data=True)
        for request in wait_for_requests(attempts_receiver, event.get_id())
    ]
    assert [
        (dead_letter_event.get_type(), dead_letter_event.get_data()) for dead_letter_event in dead_letter_events
    ] == [(events.MAINTENANCE_BEGUN, data)]
    dead_letter = parse_dead_letter(dead_letter_events[0])
    assert dead_letter is not None
    assert (dead_letter.destination, dead_letter.code) == ("http://localhost/cordon", 400)
    assert "data" in dead_letter.data


def wait_for_requests(receiver: Receiver, event_id: str) -> list[ReceivedRequest]:
    """Wait until the receiver got a request that contains the event with this id; return all such requests."""
    receiver.wait_until(lambda: any(request.id == event_id for request in receiver.requests))
    return [request for request in receiver.requests if request.id == event_id]


def test_rejected_replay_is_not_a_dead_letter(flask_client: FlaskClient, attempts_receiver: Receiver) -> None:
    """Check that a rejected replay is not published as a dead letter, because its client gets the error."""
    replayed = CloudEvent(
        {**build_tick().get_attributes(), "type": events.MAINTENANCE_BEGUN, "replay": "r1"}, {"no": "node"}
    )
    invalid_event = CloudEvent({**build_tick().get_attributes(), "type": events.MAINTENANCE_BEGUN}, {"no": "node"})

    for event in (replayed, invalid_event):
        assert post_event(flask_client, "cordon", event) == 400

    wait_for_requests(attempts_receiver, invalid_event.get_id())
    assert replayed.get_id() not in {request.id for request in attempts_receiver.requests}


def test_attempt_contains_name_of_exception_in_step(attempts_receiver: Receiver) -> None:
    """X-6: The attempt of a step that raises an unexpected exception contains status 500 and the exception's name."""
    publisher = Publisher(attempts_receiver.url)

    with pytest.raises(TypeError, match="boom"):
        _raise_in_attempt(OngoingAttempt("cordon", build_tick(), publisher))

    attempts_receiver.wait_for_requests("/")
    publisher.close()
    assert [(attempt.status, attempt.error) for attempt in parse_received_attempts(attempts_receiver)] == [
        (500, "TypeError: boom")
    ]


def _raise_in_attempt(attempt: OngoingAttempt) -> None:
    with attempt:
        raise TypeError("boom")


def test_record_publishes_no_attempts_of_its_own(flask_client: FlaskClient, attempts_receiver: Receiver) -> None:
    """Check that `record` publishes no attempts of its own, because each batch would cause another attempt."""
    assert post_event(flask_client, "record", build_tick()) == 204
    assert post_event(flask_client, "cordon", build_tick()) == 204

    attempts_receiver.wait_for_requests("/record")
    assert [attempt.function for attempt in parse_received_attempts(attempts_receiver)] == ["cordon"]


def test_attempts_are_published_in_batches(attempts_receiver: Receiver) -> None:
    """Check that attempts are published in batches: 150 attempts within half a second are sent in two requests."""
    publisher = Publisher(attempts_receiver.url)

    for _ in range(MAX_ATTEMPTS_PER_EVENT + 50):
        add_cordon_attempt(publisher, build_tick())

    attempts_receiver.wait_for_requests("/", 2)
    publisher.close()
    assert [
        len(parse_attempts(decode_event(request.headers, request.body))) for request in attempts_receiver.requests
    ] == [100, 50]


@pytest.mark.slow
def test_batch_is_retried_after_503(attempts_receiver: Receiver) -> None:
    """X-6: After a 503, a batch is sent again with the same event id, so that `record` stores no attempt twice."""
    attempts_receiver.answers["/"] = lambda _: Response(503 if len(attempts_receiver.requests) < 3 else 204)
    publisher = Publisher(attempts_receiver.url)
    event = build_tick()

    add_cordon_attempt(publisher, event)

    attempts_receiver.wait_for_requests("/", 3)
    publisher.close()
    assert len({request.id for request in attempts_receiver.requests}) == 1
    assert {attempt.event for attempt in parse_received_attempts(attempts_receiver)} == {event.get_id()}


def test_batch_is_split_after_413(attempts_receiver: Receiver) -> None:
    """X-6: A batch that is rejected with 413 is published in halves."""
    attempts_receiver.answers["/"] = lambda request: Response(413 if len(request.body) > 1000 else 204)
    publisher = Publisher(attempts_receiver.url)
    test_events = [build_tick() for _ in range(8)]

    for event in test_events:
        add_cordon_attempt(publisher, event)

    attempts_receiver.wait_for_requests("/", 3)
    publisher.close()
    accepted_requests = [request for request in attempts_receiver.requests if len(request.body) <= 1000]
    published_ids = {
        attempt.event
        for accepted in accepted_requests
        for attempt in parse_attempts(decode_event(accepted.headers, accepted.body))
    }
    assert published_ids == {event.get_id() for event in test_events}


def test_invalid_attempt_does_not_cause_loss_of_other_attempts_in_batch(
    attempts_receiver: Receiver, functions: Functions
) -> None:
    """X-6: A batch that is rejected because of one attempt is split repeatedly, until only that attempt is lost."""
    attempts_receiver.answers["/"] = lambda request: Response(400 if b"poison" in request.body else 204)
    publisher, before = Publisher(attempts_receiver.url), read_lost_count(functions)
    test_events = [build_tick() for _ in range(8)]
    invalid_event = CloudEvent({**build_tick().get_attributes(), "id": "poison"}, {})

    for event in (*test_events[:5], invalid_event, *test_events[5:]):
        add_cordon_attempt(publisher, event)

    attempts_receiver.wait_for_requests("/", 4)
    publisher.close()
    accepted_requests = [request for request in attempts_receiver.requests if b"poison" not in request.body]
    published_ids = [
        attempt.event
        for accepted in accepted_requests
        for attempt in parse_attempts(decode_event(accepted.headers, accepted.body))
    ]
    assert sorted(published_ids) == sorted(event.get_id() for event in test_events)
    assert read_lost_count(functions) - before == 1


def test_queue_drops_oldest_attempts_beyond_limit(functions: Functions) -> None:
    """Check that the queue drops the oldest attempts beyond its limit, and that a metric counts dropped attempts."""
    before = read_lost_count(functions)
    publisher = Publisher(DISCARD_URL, BATCH_DELAY_SECONDS)

    for _ in range(MAX_QUEUED_ATTEMPTS + 100 + 10):
        add_cordon_attempt(publisher, build_tick())

    publisher.close()
    assert 10 <= read_lost_count(functions) - before <= 110


def test_unsendable_dead_letter_does_not_stop_publisher(attempts_receiver: Receiver) -> None:
    """X-6: A dead letter that cannot be sent over HTTP is lost, and later attempts and dead letters are published."""
    publisher, event = Publisher(attempts_receiver.url), build_tick()

    publisher.add_dead_letter(CloudEvent({**build_tick().get_attributes(), "datacontenttype": "€"}, {}))
    publisher.add_dead_letter(event)

    wait_for_requests(attempts_receiver, event.get_id())
    add_cordon_attempt(publisher, event)
    attempts_receiver.wait_for_requests("/", 2)
    publisher.close()


def test_dead_letter_rejected_by_record_is_counted(
    attempts_receiver: Receiver, functions: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    """X-6: A dead letter that `record` rejects is counted and logged, because no administrator can redrive it."""
    attempts_receiver.answers["/"] = lambda request: Response(403 if request.id == "forged" else 204)
    publisher, before, event = (
        Publisher(attempts_receiver.url),
        read_lost_count(functions, "dead_letters"),
        build_tick(),
    )

    publisher.add_dead_letter(CloudEvent({**build_tick().get_attributes(), "id": "forged"}, {}))
    publisher.add_dead_letter(event)

    wait_for_requests(attempts_receiver, event.get_id())
    publisher.close()
    assert read_lost_count(functions, "dead_letters") - before == 1
    assert [line for line in caplog.messages if line.startswith("record rejected")] == [
        "record rejected a dead letter: HTTP 403"
    ]


def test_dropped_dead_letters_are_counted(functions: Functions) -> None:
    """X-6: Dead letters that are dropped beyond the queue's limit are counted; one dead letter may be in flight."""
    before = read_lost_count(functions, "dead_letters")
    publisher = Publisher(DISCARD_URL, BATCH_DELAY_SECONDS)

    for _ in range(MAX_QUEUED_DEAD_LETTERS + 10):
        publisher.add_dead_letter(build_tick())

    publisher.close()
    assert 9 <= read_lost_count(functions, "dead_letters") - before <= 10


def test_size_of_queued_attempts_is_limited(functions: Functions) -> None:
    """X-6: The queue limits the total size of its attempts, which includes errors, but not events of up to 2 MiB."""
    before = read_lost_count(functions)
    publisher = Publisher(DISCARD_URL, BATCH_DELAY_SECONDS)
    large_event = CloudEvent(build_tick().get_attributes(), {"text": "x" * 2_000_000})

    for _ in range(100):
        with OngoingAttempt("cordon", large_event, publisher) as attempt:
            attempt.error = "x" * (MAX_QUEUED_ATTEMPT_BYTES // 10)

    publisher.close()
    assert 80 <= read_lost_count(functions) - before <= 100
    assert attempt.build_finished_attempt().estimated_bytes < MAX_QUEUED_ATTEMPT_BYTES // 9


def read_lost_count(functions: Functions, metric_infix: str = "attempts") -> float:
    text, name = functions.clients["begin"].get("/metrics").text, f"nodemaintenance_{metric_infix}_lost_total "
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def test_publishing_delays_step_by_less_than_50_microseconds() -> None:
    """Check that publishing an attempt delays a step by less than 50 µs (median), even without a receiver."""
    publisher, event = Publisher(DISCARD_URL, BATCH_DELAY_SECONDS), build_tick()
    durations = []

    for _ in range(1000):
        start_time = time.perf_counter()
        add_cordon_attempt(publisher, event)
        durations.append(time.perf_counter() - start_time)

    publisher.close()
    print(f"median time to add an attempt: {statistics.median(durations) * 1e6:.1f} µs")
    assert statistics.median(durations) < 50e-6


def test_close_publishes_remaining_attempts(attempts_receiver: Receiver) -> None:
    """Check that `close` publishes the attempts that are still in the queue."""
    publisher = Publisher(attempts_receiver.url)
    add_cordon_attempt(publisher, build_tick())

    publisher.close()

    assert len(parse_received_attempts(attempts_receiver)) == 1


def test_close_retries_until_record_is_available(attempts_receiver: Receiver) -> None:
    """Check that `close` sends the remaining attempts repeatedly until `record` accepts them.

    When its node is drained, `record` is unavailable until it has started on another node.
    """
    attempts_receiver.answers["/"] = lambda _: Response(503 if len(attempts_receiver.requests) < 4 else 204)
    publisher, test_events = Publisher(attempts_receiver.url), [build_tick(), build_tick()]
    for event in test_events:
        add_cordon_attempt(publisher, event)

    publisher.close()

    assert {attempt.event for attempt in parse_received_attempts(attempts_receiver)} == {
        event.get_id() for event in test_events
    }


def test_close_returns_at_time_limit(attempts_receiver: Receiver) -> None:
    """Check that `close` returns at its time limit even if `record` never accepts the attempts.

    The process must exit before the kubelet kills it.
    """
    attempts_receiver.answers["/"] = lambda _: Response(503)
    publisher = Publisher(attempts_receiver.url, 1.2)
    add_cordon_attempt(publisher, build_tick())
    start_time = time.monotonic()

    publisher.close()

    assert 1 < time.monotonic() - start_time < 2
    assert len(attempts_receiver.requests) > 1


def test_connection_to_deleted_pod_times_out_quickly() -> None:
    """Check that a connection to a deleted pod times out quickly.

    The next connection may reach another pod of `record`, so a retry is better than waiting.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent_server:
        address = silent_server.getsockname()
        with socket.create_connection(address):  # Fill the listening socket's backlog of one connection.
            other_threads = set(threading.enumerate())
            publisher = Publisher("http://{}:{}".format(*address), flush_seconds=0.5)
            add_cordon_attempt(publisher, build_tick())
            (thread,) = set(threading.enumerate()) - other_threads
            publisher.close()
            thread.join(3)

            assert not thread.is_alive()


@pytest.mark.slow
def test_close_waits_briefly_for_local_record() -> None:
    """Check that `close` waits only briefly for a `record` on the same host, where all processes exit together."""
    publisher = Publisher(DISCARD_URL)
    add_cordon_attempt(publisher, build_tick())
    start_time = time.monotonic()

    publisher.close()

    assert time.monotonic() - start_time < 3


def test_attempt_added_during_retry_of_last_dead_letter_is_published(attempts_receiver: Receiver) -> None:
    """Check that an attempt that is added during the retry of the last dead letter is published.

    The publisher is closed during that retry.
    """
    publisher = Publisher(attempts_receiver.url)
    closing_thread = threading.Thread(target=publisher.close)

    def respond_and_close(_: object) -> Response:
        if len(attempts_receiver.requests) == 1:
            add_cordon_attempt(publisher, build_tick())
            closing_thread.start()
            return Response(503)
        return Response(204)

    attempts_receiver.answers["/"] = respond_and_close
    publisher.add_dead_letter(build_tick())
    attempts_receiver.wait_until(lambda: closing_thread.ident is not None)
    closing_thread.join(TIMEOUT_SECONDS)

    kinds = [request.headers["ce-type"] for request in attempts_receiver.requests]
    assert kinds[:2] == [build_tick().get_type()] * 2
    assert events.ATTEMPTS_MADE in kinds


QUEUE_ITEMS, QUEUE_BYTES = 5, 100


@given(st.lists(st.integers(0, 150), max_size=30))
def test_queue_keeps_newest_items_within_limits(sizes: list[int]) -> None:
    """X-6: The queue keeps as many of the newest items as its limits allow, and returns the number of dropped items."""
    queue: BoundedQueue[int] = BoundedQueue(QUEUE_ITEMS, QUEUE_BYTES)

    dropped = sum(queue.append(number, size) for number, size in enumerate(sizes))
    remaining = queue.take(len(sizes))

    assert dropped + len(remaining) == len(sizes)
    assert remaining == list(range(dropped, len(sizes)))
    assert len(remaining) <= QUEUE_ITEMS
    assert sum(sizes[number] for number in remaining) <= QUEUE_BYTES
    if dropped:
        assert len(remaining) == QUEUE_ITEMS or sum(sizes[dropped - 1 :]) > QUEUE_BYTES


def test_size_of_removed_queue_items_does_not_count() -> None:
    """X-6: The bytes of a removed item do not count towards the queue's size limit."""
    queue: BoundedQueue[str] = BoundedQueue(QUEUE_ITEMS, QUEUE_BYTES)
    queue.append("first", 60)

    assert queue.take(1) == ["first"]
    assert queue.append("second", 90) == 0
    assert (queue.take(9), len(queue)) == (["second"], 0)
