"""Tests of the delivery of accepted events, with real subscribers and sockets."""

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

from eventing.local.delivery import AT_ONE_DOOR, LETTERS_AT_ONCE
from tests.eventing.local.broker_process import ROOT, Broker, binary, reply, service, trigger
from tests.receiver import PATIENCE, Answer, Received, Receiver

Start = Callable[..., Broker]
QUICK = {"retry": 3, "backoffPolicy": "exponential", "backoffDelay": "PT0.1S", "timeout": "PT5S"}


def test_an_event_reaches_exactly_the_triggers_that_want_it(receiver: Receiver, start: Start) -> None:
    """Check that an event reaches exactly the matching Triggers' subscribers, in binary mode with unchanged bytes."""
    broker = start(trigger("one", type="a"), trigger("two", type="b"), trigger("all"))

    broker.post('{"x":  [1, "ä"]}', type="a", node="n1", subject="s p")
    broker.wait_line(msg="delivered", trigger="one")
    broker.wait_line(msg="delivered", trigger="all")

    (one,) = receiver.at("/one")
    assert one.body == '{"x":  [1, "ä"]}'.encode()
    assert one.headers["ce-type"] == "a"
    assert one.headers["ce-node"] == "n1"
    assert one.headers["ce-subject"] == "s%20p"
    assert one.headers["content-type"] == "application/json"
    assert one.headers["prefer"] == "reply"
    assert receiver.at("/two") == []


def test_replies_make_a_chain(receiver: Receiver, start: Start) -> None:
    """Check that a reply that is an event is delivered to the matching Triggers, and so are replies to it."""
    receiver.answers["/begin"] = lambda _: reply(id="2", type="begun", partitionkey="n1")
    receiver.answers["/cordon"] = lambda _: reply(id="3", type="cordoned", partitionkey="n1")
    broker = start(trigger("begin", type="add"), trigger("cordon", type="begun"), trigger("taint", type="cordoned"))

    broker.post(type="add")

    (last,) = receiver.wait_for("/taint")
    assert last.id == "3"
    assert last.body == b'{"answered": true}'


def test_a_structured_reply_and_a_structured_event_are_understood(receiver: Receiver, start: Start) -> None:
    """Check that structured events and structured replies are accepted, and are delivered in binary mode."""
    event = {"specversion": "1.0", "id": "2", "source": "/f", "type": "b", "data": {"n": 1}}
    structured = {"content-type": "application/cloudevents+json; charset=utf-8"}
    receiver.answers["/one"] = lambda _: Answer(200, structured, json.dumps(event).encode())
    broker = start(trigger("one", type="a"), trigger("two", type="b"))

    accepted = requests.post(broker.url, json={**event, "type": "a"}, headers=structured, timeout=5)

    (two,) = receiver.wait_for("/two")
    assert accepted.status_code == 202
    assert json.loads(two.body) == {"n": 1}
    assert two.headers["ce-type"] == "b"


def test_a_trace_goes_along_as_header_and_as_extension(receiver: Receiver, start: Start) -> None:
    """Check that a traceparent header becomes the extension, and that the subscriber gets both."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    broker = start(trigger("one"))

    requests.post(broker.url, data="{}", headers={**binary(), "traceparent": trace}, timeout=5)

    (one,) = receiver.wait_for("/one")
    assert one.headers["traceparent"] == one.headers["ce-traceparent"] == trace


@pytest.mark.parametrize("trace", [b"\xff", b"00-no-trace", b"x" * 4000])
def test_a_trace_that_is_none_goes_along_with_nothing(receiver: Receiver, start: Start, trace: bytes) -> None:
    """Trace Context, 3.2: An invalid traceparent header is ignored, and the event is delivered without a trace."""
    broker = start(trigger("one"))

    answer = requests.post(broker.url, data="{}", headers={**binary(), "traceparent": trace}, timeout=5)

    assert answer.status_code == 202
    (one,) = receiver.wait_for("/one")
    assert "ce-traceparent" not in one.headers


def test_one_key_is_in_order_and_never_twice_at_once(receiver: Receiver, start: Start) -> None:
    """Check that events of one partition key reach a function one after another, even through two Triggers."""
    broker = start(
        trigger("one", subscriber="f", type="a"),
        trigger("two", subscriber="f", type="b"),
    )

    for number in range(40):
        broker.post(id=str(number), type="ab"[number % 2], partitionkey="n1")

    got = receiver.wait_for("/f", 40)
    assert [request.id for request in got] == [str(number) for number in range(40)]
    assert receiver.most_at_once["/f"] == 1


def test_keys_run_side_by_side_up_to_the_triggers_parallelism(receiver: Receiver, start: Start) -> None:
    """Check that events of different keys are delivered concurrently, up to the Trigger's parallelism."""
    manifest = trigger("f")
    manifest["metadata"]["annotations"] = {"rabbitmq.eventing.knative.dev/parallelism": "3"}
    everybody = threading.Barrier(3)

    def together(_: Received) -> Answer:
        everybody.wait(timeout=10)
        return Answer()

    receiver.answers["/f"] = together
    broker = start(manifest)

    for number in range(9):
        broker.post(id=str(number), partitionkey=f"n{number}")

    receiver.wait_for("/f", 9)
    assert receiver.most_at_once["/f"] == 3


def test_one_server_gets_so_many_requests_at_once_and_the_rest_waits_without_a_time_out(
    receiver: Receiver, start: Start
) -> None:
    """Check that all Triggers together have a limited number of requests in flight to one server.

    One process may serve all functions, and the timeout of a request runs while the server queues it.
    """
    names = ("f", "g", "h")
    together = threading.Barrier(AT_ONE_DOOR)
    running: list[int] = []

    def wait(_: Received) -> Answer:
        running.append(sum(receiver.running.values()))
        together.wait(timeout=10)
        return Answer()

    receiver.answers.update({f"/{name}": wait for name in names})
    broker = start(*(trigger(name, delivery={**QUICK, "retry": 0, "timeout": "PT10S"}) for name in names))

    for number in range(AT_ONE_DOOR):
        broker.post(id=str(number), partitionkey=f"n{number}")

    for name in names:
        assert len(receiver.wait_for(f"/{name}", AT_ONE_DOOR)) == AT_ONE_DOOR
    assert max(running) == AT_ONE_DOOR
    assert len(receiver.requests) == AT_ONE_DOOR * len(names)  # no request was retried


def test_a_server_of_all_functions_has_a_thread_for_each_request_that_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the server of all functions has as many threads as the broker sends concurrent requests.

    The timeout of a request runs while it waits for a thread, so both numbers must change together.
    """
    monkeypatch.delenv("FUNCTION", raising=False)

    assert runpy.run_path(str(ROOT / "functions/gunicorn.conf.py"))["threads"] == AT_ONE_DOOR


def test_a_retried_event_holds_back_only_its_own_key(receiver: Receiver, start: Start) -> None:
    """Check that a retried event delays later events of its key, and not those of other keys."""
    refused = threading.Event()

    def answer(request: Received) -> Answer:
        if request.id == "bad" and not refused.is_set():
            return Answer(503)
        return Answer()

    receiver.answers["/f"] = answer
    broker = start(trigger("f", delivery={**QUICK, "retry": 50, "backoffPolicy": "linear", "backoffDelay": "PT0.01S"}))

    broker.post(id="bad", partitionkey="n1")
    broker.post(id="later", partitionkey="n1")
    broker.post(id="other", partitionkey="n2")
    broker.wait_line(msg="delivered", id="other")
    assert "later" not in [request.id for request in receiver.requests]
    refused.set()
    broker.wait_line(msg="delivered", id="later")

    ids = [request.id for request in receiver.requests]
    assert ids.index("later") > max(place for place, value in enumerate(ids) if value == "bad")


@pytest.mark.parametrize(
    ("policy", "pauses"), [("exponential", [0.1, 0.2, 0.4]), ("linear", [0.0, 0.1, 0.2])], ids=["exponential", "linear"]
)
def test_a_failing_subscriber_is_tried_again_with_the_declared_backoff(
    receiver: Receiver, start: Start, policy: str, pauses: list[float]
) -> None:
    """Check that a 503 response is retried `retry` times, with the delays of Knative's backoff policies."""
    receiver.answers["/f"] = lambda _: Answer(503)
    broker = start(trigger("f", delivery={**QUICK, "backoffPolicy": policy}))

    broker.post()
    broker.wait_line(msg="dropped")

    times = [request.at for request in receiver.at("/f")]
    waited = [later - sooner for sooner, later in pairwise(times)]
    assert len(waited) == 3
    for got, wanted in zip(waited, pauses, strict=True):
        assert wanted <= got + 0.005
        assert got < wanted + 0.3


PASSING, LASTING = (404, 408, 409, 429, 500, 503), (301, 400, 403, 415, 422)
"""Transient statuses, which are retried, and permanent statuses, which are not."""


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Receiver]]:
    """Yield a broker with a Trigger for each status, which the event's type selects, and its subscriber."""
    quick = {**QUICK, "backoffDelay": "PT0.01S"}
    passing = [trigger(f"f-{status}", type=f"{status}", delivery=quick) for status in PASSING]
    delivery = {**QUICK, "deadLetterSink": service("record")}
    lasting = [trigger(f"f-{status}", type=f"{status}", delivery=delivery) for status in LASTING]
    with closing(Receiver()) as receiver:
        broker = Broker(tmp_path_factory.mktemp("statuses"), [*passing, *lasting], receiver.url)
        yield broker, receiver
        broker.stop()


@pytest.mark.parametrize("status", PASSING)
def test_these_statuses_are_tried_again(answered: tuple[Broker, Receiver], status: int) -> None:
    """Check that a transient status is retried, and that the event is delivered once the subscriber accepts it."""
    broker, receiver = answered
    answers = iter([Answer(status), Answer(status)])
    receiver.answers[f"/f-{status}"] = lambda _: next(answers, Answer())

    broker.post(type=f"{status}", id=f"{status}")
    broker.wait_line(msg="delivered", id=f"{status}")

    assert len(receiver.at(f"/f-{status}")) == 3


@pytest.mark.parametrize("status", LASTING)
def test_these_statuses_go_straight_to_the_dead_letter_sink(answered: tuple[Broker, Receiver], status: int) -> None:
    """Check that a permanent status makes the event a dead letter at once, with the extensions that Knative sets."""
    broker, receiver = answered
    receiver.answers[f"/f-{status}"] = lambda _: Answer(status, body=b"no such thing")

    broker.post('{"n": 1}', type=f"{status}", id=f"{status}", node="n1")
    broker.wait_line(msg="dead letter taken", id=f"{status}")

    (letter,) = [request for request in receiver.at("/record") if request.id == f"{status}"]
    assert len(receiver.at(f"/f-{status}")) == 1
    assert letter.body == b'{"n": 1}'
    assert letter.headers["ce-node"] == "n1"
    assert letter.headers["ce-knativeerrordest"] == f"{receiver.url}/f-{status}"
    assert letter.headers["ce-knativeerrorcode"] == str(status)
    assert base64.b64decode(letter.headers["ce-knativeerrordata"]) == b"no such thing"


@pytest.mark.slow
def test_a_hung_subscriber_is_given_up_after_the_timeout(receiver: Receiver, start: Start) -> None:
    """Check that no response within `timeout` counts as a failed attempt, and that the dead letter has code 500."""
    done = threading.Event()

    def hang(_: Received) -> Answer:
        done.wait(10)
        return Answer()

    receiver.answers["/f"] = hang
    delivery = {"retry": 1, "timeout": "PT1S", "deadLetterSink": service("record")}
    start(trigger("f", delivery=delivery)).post()

    (letter,) = receiver.wait_for("/record")
    done.set()
    assert len(receiver.at("/f")) == 2
    assert letter.headers["ce-knativeerrorcode"] == "500"
    assert b"1 s" in base64.b64decode(letter.headers["ce-knativeerrordata"])


def test_an_answer_that_is_no_event_is_a_failed_delivery(receiver: Receiver, start: Start) -> None:
    """Check that a response body that is not a CloudEvent is a failure with code 502, as in Knative's broker."""
    receiver.answers["/f"] = lambda _: Answer(200, {"content-type": "text/html"}, b"<p>hello")
    broker = start(trigger("f", delivery={"retry": 1, "deadLetterSink": service("record")}))

    broker.post()

    (letter,) = receiver.wait_for("/record")
    assert len(receiver.at("/f")) == 2
    assert letter.headers["ce-knativeerrorcode"] == "502"


def test_without_a_dead_letter_sink_an_undeliverable_event_is_dropped_aloud(receiver: Receiver, start: Start) -> None:
    """Check that an undeliverable event without a dead letter sink is dropped with an error line.

    The next event of the same key is delivered.
    """
    receiver.answers["/f"] = lambda request: Answer(400 if request.id == "1" else 202)
    broker = start(trigger("f", delivery={"retry": 0}))

    broker.post(id="1", partitionkey="n1")
    broker.post(id="2", partitionkey="n1")

    assert broker.wait_line(msg="dropped", id="1")["level"] == "error"
    broker.wait_line(msg="delivered", id="2")


@pytest.mark.slow
def test_a_dead_letter_waits_for_its_sink_also_across_a_restart(receiver: Receiver, start: Start) -> None:
    """Check that a dead letter is kept and retried while its sink is unavailable, also after a restart.

    The subscriber does not get the event again.
    """
    receiver.answers["/f"] = lambda _: Answer(400)
    receiver.answers["/record"] = lambda _: Answer(503)
    broker = start(trigger("f", delivery={"retry": 0, "deadLetterSink": service("record")}))

    broker.post(id="1", partitionkey="n1")
    broker.wait_line(msg="dead letter not taken")
    broker.kill()
    receiver.answers["/record"] = lambda _: Answer(202)
    broker.restart()
    broker.wait_line(msg="dead letter taken", id="1")

    assert len(receiver.at("/f")) == 1


@pytest.mark.slow
def test_a_dead_letter_sink_that_hangs_keeps_nobody_waiting(receiver: Receiver, start: Start) -> None:
    """Check that a hanging dead letter sink delays no other deliveries, since it gets few concurrent requests."""
    ends = threading.Event()
    receiver.answers["/f"] = lambda request: Answer(202 if request.id == "good" else 400)
    receiver.answers["/sink"] = lambda _: Answer() if ends.wait(PATIENCE) else Answer(503)
    delivery = {"retry": 0, "timeout": "PT30S", "deadLetterSink": service("sink")}
    broker = start(trigger("f", delivery=delivery))
    for number in range(2 * AT_ONE_DOOR):
        broker.post(id=str(number), partitionkey=f"n{number}")
    receiver.wait_for("/f", 2 * AT_ONE_DOOR)
    receiver.wait_for("/sink", LETTERS_AT_ONCE)

    broker.post(id="good", partitionkey="another")

    broker.wait_line(msg="delivered", id="good")
    assert receiver.most_at_once["/sink"] == LETTERS_AT_ONCE
    ends.set()
    receiver.wait_for("/sink", 2 * AT_ONE_DOOR)


def test_what_a_dead_letter_sink_answers_does_not_matter(receiver: Receiver, start: Start) -> None:
    """Check that any 2xx response of a dead letter sink is a success, and that an event in it is not delivered."""
    receiver.answers["/f"] = lambda _: Answer(400)
    receiver.answers["/record"] = lambda request: Answer(200, body=b"ok") if request.id == "1" else reply(type="b")
    broker = start(trigger("f", type="a", delivery={"deadLetterSink": service("record")}), trigger("g", type="b"))

    broker.post(id="1", type="a")
    broker.post(id="2", type="a")
    broker.wait_line(msg="dead letter taken", id="1")
    broker.wait_line(msg="dead letter taken", id="2")

    assert len(receiver.at("/record")) == 2
    assert receiver.at("/g") == []


def test_the_log_tells_the_flow(receiver: Receiver, start: Start) -> None:
    """Check that each accepted event and each delivery is one JSON log line with the fields that identify it."""
    broker = start(trigger("f"))

    broker.post(id="5", type="a", node="n1")
    delivered = broker.wait_line(msg="delivered")

    accepted = broker.wait_line(msg="accepted")
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


def test_a_dead_letter_that_its_sink_refuses_for_good_is_dropped(receiver: Receiver, start: Start) -> None:
    """X-6: A dead letter that its sink rejects permanently is dropped.

    Otherwise any client that may post events could create dead letters that are retried forever.
    """
    receiver.answers["/f"] = receiver.answers["/dead"] = lambda _: Answer(400, body=b"not me")
    broker = start(trigger("f", delivery={"retry": 0, "deadLetterSink": service("dead")}))

    broker.post(id="poison")
    broker.wait_line(msg="dropped", id="poison")

    assert [request.id for request in receiver.at("/dead")] == ["poison"]
    assert "nodemaintenance_delivery_queue_length 0.0" in requests.get(f"{broker.url}/metrics", timeout=10).text
