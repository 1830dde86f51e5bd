"""Tests for the delivery of accepted events to real subscribers."""

from __future__ import annotations

import base64
import json
import runpy
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise

import pytest
import requests

from eventing.local.delivery import MAX_DEAD_LETTERS_PER_SINK, MAX_REQUESTS_PER_SERVER
from localcluster.http_receiver import TIMEOUT_SECONDS, ReceivedRequest, Receiver, Response
from tests.eventing.local.broker_process import (
    ROOT,
    BrokerProcess,
    build_binary_headers,
    build_event_response,
    build_service_reference,
    build_trigger,
)

StartBroker = Callable[..., BrokerProcess]
FAST_DELIVERY = {"retry": 3, "backoffPolicy": "exponential", "backoffDelay": "PT0.1S", "timeout": "PT5S"}


def test_event_is_delivered_exactly_to_subscribers_of_matching_triggers(
    receiver: Receiver, start_broker: StartBroker
) -> None:
    """Check that an event is delivered unchanged in binary mode to exactly the subscribers of matching Triggers."""
    broker = start_broker(build_trigger("one", type="a"), build_trigger("two", type="b"), build_trigger("all"))

    broker.post('{"x":  [1, "ä"]}', type="a", node="n1", subject="s p")
    broker.wait_for_log_line(msg="delivered", trigger="one")
    broker.wait_for_log_line(msg="delivered", trigger="all")

    (request,) = receiver.list_requests("/one")
    assert request.body == '{"x":  [1, "ä"]}'.encode()
    assert request.headers["ce-type"] == "a"
    assert request.headers["ce-node"] == "n1"
    assert request.headers["ce-subject"] == "s%20p"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["prefer"] == "reply"
    assert receiver.list_requests("/two") == []


def test_replies_are_delivered_as_events(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that an event in a response is delivered to matching Triggers, and so are the replies to this event."""
    receiver.answers["/begin"] = lambda _: build_event_response(id="2", type="begun", partitionkey="n1")
    receiver.answers["/cordon"] = lambda _: build_event_response(id="3", type="cordoned", partitionkey="n1")
    broker = start_broker(
        build_trigger("begin", type="add"),
        build_trigger("cordon", type="begun"),
        build_trigger("taint", type="cordoned"),
    )

    broker.post(type="add")

    (request,) = receiver.wait_for_requests("/taint")
    assert request.id == "3"
    assert request.body == b'{"answered": true}'


def test_structured_events_and_replies_are_accepted(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that structured events and structured replies are accepted, and are delivered in binary mode."""
    event = {"specversion": "1.0", "id": "2", "source": "/f", "type": "b", "data": {"n": 1}}
    structured = {"content-type": "application/cloudevents+json; charset=utf-8"}
    receiver.answers["/one"] = lambda _: Response(200, structured, json.dumps(event).encode())
    broker = start_broker(build_trigger("one", type="a"), build_trigger("two", type="b"))

    response = requests.post(broker.url, json={**event, "type": "a"}, headers=structured, timeout=5)

    (request,) = receiver.wait_for_requests("/two")
    assert response.status_code == 202
    assert json.loads(request.body) == {"n": 1}
    assert request.headers["ce-type"] == "b"


def test_traceparent_is_sent_as_header_and_extension(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a traceparent header also becomes an extension, and that the subscriber receives both."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    broker = start_broker(build_trigger("one"))

    requests.post(broker.url, data="{}", headers={**build_binary_headers(), "traceparent": trace}, timeout=5)

    (request,) = receiver.wait_for_requests("/one")
    assert request.headers["traceparent"] == request.headers["ce-traceparent"] == trace


@pytest.mark.parametrize("trace", [b"\xff", b"00-no-trace", b"x" * 4000])
def test_invalid_traceparent_is_ignored(receiver: Receiver, start_broker: StartBroker, trace: bytes) -> None:
    """Trace Context, 3.2: an invalid traceparent header is ignored, and the event is delivered without a trace."""
    broker = start_broker(build_trigger("one"))

    response = requests.post(broker.url, data="{}", headers={**build_binary_headers(), "traceparent": trace}, timeout=5)

    assert response.status_code == 202
    (request,) = receiver.wait_for_requests("/one")
    assert "ce-traceparent" not in request.headers


def test_events_with_same_partition_key_are_delivered_in_order(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a function receives events with the same partition key one at a time, even from two Triggers."""
    broker = start_broker(
        build_trigger("one", subscriber="f", type="a"),
        build_trigger("two", subscriber="f", type="b"),
    )

    for number in range(40):
        broker.post(id=str(number), type="ab"[number % 2], partitionkey="n1")

    received = receiver.wait_for_requests("/f", 40)
    assert [request.id for request in received] == [str(number) for number in range(40)]
    assert receiver.max_in_flight["/f"] == 1


def test_events_with_different_partition_keys_are_delivered_concurrently(
    receiver: Receiver, start_broker: StartBroker
) -> None:
    """Check that events with different partition keys are delivered concurrently, up to the Trigger's parallelism."""
    manifest = build_trigger("f")
    manifest["metadata"]["annotations"] = {"rabbitmq.eventing.knative.dev/parallelism": "3"}
    barrier = threading.Barrier(3)

    def respond_after_all_requests_arrived(_: ReceivedRequest) -> Response:
        barrier.wait(timeout=10)
        return Response()

    receiver.answers["/f"] = respond_after_all_requests_arrived
    broker = start_broker(manifest)

    for number in range(9):
        broker.post(id=str(number), partitionkey=f"n{number}")

    receiver.wait_for_requests("/f", 9)
    assert receiver.max_in_flight["/f"] == 3


def test_requests_in_flight_to_one_server_are_limited(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that the number of requests in flight to one server is limited across all Triggers.

    One process may serve all functions, and a request's timeout includes the time in the server's queue.
    """
    names = ("f", "g", "h")
    barrier = threading.Barrier(MAX_REQUESTS_PER_SERVER)
    in_flight_counts: list[int] = []

    def respond_after_all_requests_arrived(_: ReceivedRequest) -> Response:
        in_flight_counts.append(sum(receiver.in_flight.values()))
        barrier.wait(timeout=10)
        return Response()

    receiver.answers.update({f"/{name}": respond_after_all_requests_arrived for name in names})
    broker = start_broker(
        *(build_trigger(name, delivery={**FAST_DELIVERY, "retry": 0, "timeout": "PT10S"}) for name in names)
    )

    for number in range(MAX_REQUESTS_PER_SERVER):
        broker.post(id=str(number), partitionkey=f"n{number}")

    for name in names:
        assert len(receiver.wait_for_requests(f"/{name}", MAX_REQUESTS_PER_SERVER)) == MAX_REQUESTS_PER_SERVER
    assert max(in_flight_counts) == MAX_REQUESTS_PER_SERVER
    assert len(receiver.requests) == MAX_REQUESTS_PER_SERVER * len(names)  # The broker retried no request.


def test_functions_server_has_thread_for_each_concurrent_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the functions' server has a thread for each request that the broker may send to it concurrently.

    A request's timeout includes the wait for a thread, so both numbers must change together.
    """
    monkeypatch.delenv("FUNCTION", raising=False)

    assert runpy.run_path(str(ROOT / "functions/gunicorn.conf.py"))["threads"] == MAX_REQUESTS_PER_SERVER


def test_retry_delays_only_events_with_same_partition_key(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a retry delays later events with the same partition key, but not events with other keys."""
    may_accept_bad = threading.Event()

    def reject_bad_event(request: ReceivedRequest) -> Response:
        if request.id == "bad" and not may_accept_bad.is_set():
            return Response(503)
        return Response()

    receiver.answers["/f"] = reject_bad_event
    broker = start_broker(
        build_trigger(
            "f", delivery={**FAST_DELIVERY, "retry": 50, "backoffPolicy": "linear", "backoffDelay": "PT0.01S"}
        )
    )

    broker.post(id="bad", partitionkey="n1")
    broker.post(id="later", partitionkey="n1")
    broker.post(id="other", partitionkey="n2")
    broker.wait_for_log_line(msg="delivered", id="other")
    assert "later" not in [request.id for request in receiver.requests]
    may_accept_bad.set()
    broker.wait_for_log_line(msg="delivered", id="later")

    ids = [request.id for request in receiver.requests]
    assert ids.index("later") > max(index for index, value in enumerate(ids) if value == "bad")


@pytest.mark.parametrize(
    ("policy", "delays"), [("exponential", [0.1, 0.2, 0.4]), ("linear", [0.0, 0.1, 0.2])], ids=["exponential", "linear"]
)
def test_failing_subscriber_is_retried_with_configured_backoff(
    receiver: Receiver, start_broker: StartBroker, policy: str, delays: list[float]
) -> None:
    """Check that after a 503 response, a delivery is retried `retry` times, with Knative's backoff delays."""
    receiver.answers["/f"] = lambda _: Response(503)
    broker = start_broker(build_trigger("f", delivery={**FAST_DELIVERY, "backoffPolicy": policy}))

    broker.post()
    broker.wait_for_log_line(msg="dropped")

    times = [request.received_at for request in receiver.list_requests("/f")]
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert len(waits) == 3
    for wait, delay in zip(waits, delays, strict=True):
        assert delay <= wait + 0.005
        assert wait < delay + 0.3


RETRIED_STATUSES, PERMANENT_STATUSES = (404, 408, 409, 429, 500, 503), (301, 400, 403, 415, 422)
"""The HTTP statuses after which a delivery is retried, and those after which the event becomes a dead letter."""


@pytest.fixture(scope="module")
def broker_and_status_receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Receiver]]:
    """Yield a broker with one Trigger per HTTP status, and its subscriber; the event type selects the Trigger."""
    fast_delivery = {**FAST_DELIVERY, "backoffDelay": "PT0.01S"}
    retrying_triggers = [
        build_trigger(f"f-{status}", type=f"{status}", delivery=fast_delivery) for status in RETRIED_STATUSES
    ]
    delivery = {**FAST_DELIVERY, "deadLetterSink": build_service_reference("record")}
    failing_triggers = [
        build_trigger(f"f-{status}", type=f"{status}", delivery=delivery) for status in PERMANENT_STATUSES
    ]
    with closing(Receiver()) as receiver:
        broker = BrokerProcess(
            tmp_path_factory.mktemp("statuses"), [*retrying_triggers, *failing_triggers], receiver.url
        )
        yield broker, receiver
        broker.stop()


@pytest.mark.parametrize("status", RETRIED_STATUSES)
def test_transient_statuses_are_retried(
    broker_and_status_receiver: tuple[BrokerProcess, Receiver], status: int
) -> None:
    """Check that a delivery is retried after a transient status, until the subscriber accepts the event."""
    broker, receiver = broker_and_status_receiver
    answers = iter([Response(status), Response(status)])
    receiver.answers[f"/f-{status}"] = lambda _: next(answers, Response())

    broker.post(type=f"{status}", id=f"{status}")
    broker.wait_for_log_line(msg="delivered", id=f"{status}")

    assert len(receiver.list_requests(f"/f-{status}")) == 3


@pytest.mark.parametrize("status", PERMANENT_STATUSES)
def test_event_becomes_dead_letter_on_permanent_status(
    broker_and_status_receiver: tuple[BrokerProcess, Receiver], status: int
) -> None:
    """Check that after a permanent status, the event is a dead letter immediately, with Knative's extensions."""
    broker, receiver = broker_and_status_receiver
    receiver.answers[f"/f-{status}"] = lambda _: Response(status, body=b"no such thing")

    broker.post('{"n": 1}', type=f"{status}", id=f"{status}", node="n1")
    broker.wait_for_log_line(msg="dead letter delivered", id=f"{status}")

    (dead_letter,) = [request for request in receiver.list_requests("/record") if request.id == f"{status}"]
    assert len(receiver.list_requests(f"/f-{status}")) == 1
    assert dead_letter.body == b'{"n": 1}'
    assert dead_letter.headers["ce-node"] == "n1"
    assert dead_letter.headers["ce-knativeerrordest"] == f"{receiver.url}/f-{status}"
    assert dead_letter.headers["ce-knativeerrorcode"] == str(status)
    assert base64.b64decode(dead_letter.headers["ce-knativeerrordata"]) == b"no such thing"


@pytest.mark.slow
def test_hanging_subscriber_times_out(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that an attempt without a response within `timeout` fails, and that the dead letter's error code is 500."""
    release = threading.Event()

    def respond_when_test_permits(_: ReceivedRequest) -> Response:
        release.wait(10)
        return Response()

    receiver.answers["/f"] = respond_when_test_permits
    delivery = {"retry": 1, "timeout": "PT1S", "deadLetterSink": build_service_reference("record")}
    start_broker(build_trigger("f", delivery=delivery)).post()

    (dead_letter,) = receiver.wait_for_requests("/record")
    release.set()
    assert len(receiver.list_requests("/f")) == 2
    assert dead_letter.headers["ce-knativeerrorcode"] == "500"
    assert b"1 s" in base64.b64decode(dead_letter.headers["ce-knativeerrordata"])


def test_response_that_is_not_an_event_is_failed_attempt(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a response body that is not a CloudEvent fails the attempt with error code 502, as in Knative."""
    receiver.answers["/f"] = lambda _: Response(200, {"content-type": "text/html"}, b"<p>hello")
    broker = start_broker(
        build_trigger("f", delivery={"retry": 1, "deadLetterSink": build_service_reference("record")})
    )

    broker.post()

    (dead_letter,) = receiver.wait_for_requests("/record")
    assert len(receiver.list_requests("/f")) == 2
    assert dead_letter.headers["ce-knativeerrorcode"] == "502"


def test_undeliverable_event_without_dead_letter_sink_is_dropped(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that an undeliverable event is dropped and logged as an error if there is no dead letter sink.

    The next event with the same partition key is delivered.
    """
    receiver.answers["/f"] = lambda request: Response(400 if request.id == "1" else 202)
    broker = start_broker(build_trigger("f", delivery={"retry": 0}))

    broker.post(id="1", partitionkey="n1")
    broker.post(id="2", partitionkey="n1")

    assert broker.wait_for_log_line(msg="dropped", id="1")["level"] == "error"
    broker.wait_for_log_line(msg="delivered", id="2")


@pytest.mark.slow
def test_dead_letter_is_retried_across_restart(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a dead letter is kept and retried while its sink is unavailable, even across a restart of the broker.

    The subscriber does not receive the event again.
    """
    receiver.answers["/f"] = lambda _: Response(400)
    receiver.answers["/record"] = lambda _: Response(503)
    broker = start_broker(
        build_trigger("f", delivery={"retry": 0, "deadLetterSink": build_service_reference("record")})
    )

    broker.post(id="1", partitionkey="n1")
    broker.wait_for_log_line(msg="dead letter not delivered")
    broker.kill()
    receiver.answers["/record"] = lambda _: Response(202)
    broker.restart()
    broker.wait_for_log_line(msg="dead letter delivered", id="1")

    assert len(receiver.list_requests("/f")) == 1


@pytest.mark.slow
def test_hanging_dead_letter_sink_does_not_delay_other_deliveries(
    receiver: Receiver, start_broker: StartBroker
) -> None:
    """Check that a hanging dead letter sink does not delay other deliveries, as requests to it are limited."""
    release = threading.Event()
    receiver.answers["/f"] = lambda request: Response(202 if request.id == "good" else 400)
    receiver.answers["/sink"] = lambda _: Response() if release.wait(TIMEOUT_SECONDS) else Response(503)
    delivery = {"retry": 0, "timeout": "PT30S", "deadLetterSink": build_service_reference("sink")}
    broker = start_broker(build_trigger("f", delivery=delivery))
    for number in range(2 * MAX_REQUESTS_PER_SERVER):
        broker.post(id=str(number), partitionkey=f"n{number}")
    receiver.wait_for_requests("/f", 2 * MAX_REQUESTS_PER_SERVER)
    receiver.wait_for_requests("/sink", MAX_DEAD_LETTERS_PER_SINK)

    broker.post(id="good", partitionkey="another")

    broker.wait_for_log_line(msg="delivered", id="good")
    assert receiver.max_in_flight["/sink"] == MAX_DEAD_LETTERS_PER_SINK
    release.set()
    receiver.wait_for_requests("/sink", 2 * MAX_REQUESTS_PER_SERVER)


def test_response_of_dead_letter_sink_is_ignored(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that any 2xx response of a dead letter sink is a success, and that an event in the response is ignored."""
    receiver.answers["/f"] = lambda _: Response(400)
    receiver.answers["/record"] = lambda request: (
        Response(200, body=b"ok") if request.id == "1" else build_event_response(type="b")
    )
    broker = start_broker(
        build_trigger("f", type="a", delivery={"deadLetterSink": build_service_reference("record")}),
        build_trigger("g", type="b"),
    )

    broker.post(id="1", type="a")
    broker.post(id="2", type="a")
    broker.wait_for_log_line(msg="dead letter delivered", id="1")
    broker.wait_for_log_line(msg="dead letter delivered", id="2")

    assert len(receiver.list_requests("/record")) == 2
    assert receiver.list_requests("/g") == []


def test_each_accepted_event_and_delivery_is_logged(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that each accepted event and each delivery is logged as one JSON line with identifying fields."""
    broker = start_broker(build_trigger("f"))

    broker.post(id="5", type="a", node="n1")
    delivered = broker.wait_for_log_line(msg="delivered")

    accepted = broker.wait_for_log_line(msg="accepted")
    for line in (accepted, delivered):
        assert {
            "level": "info",
            "logger": "delivery",
            "id": "5",
            "type": "a",
            "source": "/test",
            "node": "n1",
        }.items() <= (line.items())
    assert delivered["trigger"] == "f"
    assert delivered["status"] == 202
    assert delivered["ms"] > 0


def test_rejected_dead_letter_is_dropped(receiver: Receiver, start_broker: StartBroker) -> None:
    """X-6: a dead letter that its sink rejects permanently is dropped.

    Otherwise, any client that may post events could create dead letters that are retried forever.
    """
    receiver.answers["/f"] = receiver.answers["/dead"] = lambda _: Response(400, body=b"not me")
    broker = start_broker(build_trigger("f", delivery={"retry": 0, "deadLetterSink": build_service_reference("dead")}))

    broker.post(id="poison")
    broker.wait_for_log_line(msg="dropped", id="poison")

    assert [request.id for request in receiver.list_requests("/dead")] == ["poison"]
    assert "nodemaintenance_delivery_queue_length 0.0" in requests.get(f"{broker.url}/metrics", timeout=10).text
