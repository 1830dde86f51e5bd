"""Tests of the attempts that functions publish: in batches, from a separate thread, at almost no cost for the step."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent
from flask.testing import FlaskClient

from eventing import events
from eventing.dead_letters import dead_letter_of
from eventing.journal.entries import attempts_in
from eventing.http_binding import binary, received
from functions.app import create_app
from functions.serving.attempts import KEPT, KEPT_BYTES, LETTERS, SOON, TOGETHER, OngoingAttempt, Publisher
from tests.functions.conftest import Functions, told
from tests.functions.event_builders import added, tick
from tests.receiver import PATIENCE, Answer, Received, Receiver
from tests.workload import Workload

NOBODY = "http://127.0.0.1:9"
"""URL of the port `discard`, on which no server listens."""


@pytest.fixture
def client(work: Workload, functions: Functions, recorder: Receiver, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    """Return a test client for all functions, which publish their attempts to `recorder`."""
    monkeypatch.setenv("RECORD", f"{recorder.url}/record")
    return create_app(functions.clusters["begin"]).test_client()


def post(client: FlaskClient, step: str, event: CloudEvent) -> int:
    message = binary(event)
    return client.post(f"/{step}", data=message.body, headers=message.headers).status_code


def a_run(feed: Publisher, event: CloudEvent, status: int = 204) -> None:
    with OngoingAttempt("cordon", event, feed) as run:
        run.status = status


def test_a_run_is_told_with_event_time_status_and_replies(
    work: Workload, client: FlaskClient, recorder: Receiver
) -> None:
    """X-6: An attempt of `begin` is published with its event, time, status and complete replies."""
    event = added(work.maintenance(work.node()))
    before = datetime.now(timezone.utc)

    assert post(client, "begin", event) == 200

    recorder.wait_for("/record")
    (made,) = told(recorder)
    assert (made.source, made.event, made.function) == (event.get_source(), event.get_id(), "begin")
    assert made.status == 200
    assert before <= made.at <= datetime.now(timezone.utc)
    assert 0 < made.seconds < 5
    (reply,) = made.replies
    assert (reply["type"], reply["cause"]) == (events.MAINTENANCE_BEGUN, event.get_id())
    assert reply["data"]["totalpods"] == 0


def test_a_refused_event_is_told_with_what_was_said(client: FlaskClient, recorder: Receiver) -> None:
    """X-6: The attempt of a rejected event contains the status and error, and that of a replay the replay's id."""
    event = CloudEvent({**tick().get_attributes(), "type": events.MAINTENANCE_BEGUN, "replay": "r1"}, {"no": "node"})

    assert post(client, "cordon", event) == 400

    recorder.wait_for("/record")
    (made,) = told(recorder)
    assert (made.status, made.replies, made.replay) == (400, (), "r1")
    assert "data.node is missing" in made.error


@pytest.mark.parametrize("chosen", ["", "redrive 1", "Redrive 1"])
def test_a_replay_is_told_as_one_whatever_its_id(client: FlaskClient, recorder: Receiver, chosen: str) -> None:
    """X-6: A replay is published as a replay even if the sender chose an id that is empty or that of a redrive.

    Otherwise a sender could close a dead letter, or add a mere trial to an event's history.
    """
    event = CloudEvent({**tick().get_attributes(), "replay": chosen, "dryrun": "All"}, {})

    assert post(client, "cordon", event) == 204

    recorder.wait_for("/record")
    (made,) = told(recorder)
    assert (made.status, made.replay) == (204, f"replay {chosen}")


@pytest.mark.parametrize("data", [{"no": "node"}, "no object"], ids=["another shape", "no JSON object"])
def test_a_refused_event_is_told_as_a_dead_letter(client: FlaskClient, recorder: Receiver, data: object) -> None:
    """X-6: A rejected event is published as a whole, with Knative's attributes for the rejecting URL and the reason.

    A broker may treat 400 as a final response, and create no dead letter itself.
    """
    event = CloudEvent({**tick().get_attributes(), "type": events.MAINTENANCE_BEGUN}, data)  # type: ignore[arg-type]

    assert post(client, "cordon", event) == 400

    told = [received(request.headers, request.body, any_data=True) for request in awaited(recorder, event.get_id())]
    assert [(letter.get_type(), letter.get_data()) for letter in told] == [(events.MAINTENANCE_BEGUN, data)]
    said = dead_letter_of(told[0])
    assert said is not None
    assert (said.destination, said.code) == ("http://localhost/cordon", 400)
    assert "data" in said.data


def awaited(recorder: Receiver, key: str) -> list[Received]:
    """Wait for a request with an event of this id, and return all requests with it."""
    recorder.wait(lambda: any(request.id == key for request in recorder.requests))
    return [request for request in recorder.requests if request.id == key]


def test_a_refused_replay_is_no_dead_letter(client: FlaskClient, recorder: Receiver) -> None:
    """Check that a rejected replay is not published as a dead letter; the client that replays it gets the error."""
    replayed = CloudEvent({**tick().get_attributes(), "type": events.MAINTENANCE_BEGUN, "replay": "r1"}, {"no": "node"})
    real = CloudEvent({**tick().get_attributes(), "type": events.MAINTENANCE_BEGUN}, {"no": "node"})

    for event in (replayed, real):
        assert post(client, "cordon", event) == 400

    awaited(recorder, real.get_id())
    assert replayed.get_id() not in {request.id for request in recorder.requests}


def test_a_bug_is_told_with_its_name(recorder: Receiver) -> None:
    """X-6: The attempt of a step that raises an unexpected exception contains 500 and the exception's name."""
    feed = Publisher(recorder.url)

    with pytest.raises(TypeError, match="boom"):
        _boom(OngoingAttempt("cordon", tick(), feed))

    recorder.wait_for("/")
    feed.close()
    assert [(made.status, made.error) for made in told(recorder)] == [(500, "TypeError: boom")]


def _boom(run: OngoingAttempt) -> None:
    with run:
        raise TypeError("boom")


def test_record_tells_nothing_of_itself(client: FlaskClient, recorder: Receiver) -> None:
    """Check that `record` publishes no attempts of its own, because each batch would cause the next one."""
    assert post(client, "record", tick()) == 204
    assert post(client, "cordon", tick()) == 204

    recorder.wait_for("/record")
    assert [made.function for made in told(recorder)] == ["cordon"]


def test_runs_go_together(recorder: Receiver) -> None:
    """Check that attempts are published in batches: 150 attempts within half a second are two requests."""
    feed = Publisher(recorder.url)

    for _ in range(TOGETHER + 50):
        a_run(feed, tick())

    recorder.wait_for("/", 2)
    feed.close()
    assert [len(attempts_in(received(request.headers, request.body))) for request in recorder.requests] == [100, 50]


@pytest.mark.slow
def test_a_recorder_that_is_away_gets_all_when_it_is_back(recorder: Receiver) -> None:
    """X-6: A batch is retried after a 503 as the same event, so that `record` stores no attempt twice."""
    recorder.answers["/"] = lambda _: Answer(503 if len(recorder.requests) < 3 else 204)
    feed = Publisher(recorder.url)
    event = tick()

    a_run(feed, event)

    recorder.wait_for("/", 3)
    feed.close()
    assert len({request.id for request in recorder.requests}) == 1
    assert {made.event for made in told(recorder)} == {event.get_id()}


def test_what_is_too_large_together_is_told_apart(recorder: Receiver) -> None:
    """X-6: A batch that is rejected with 413 is published in halves."""
    recorder.answers["/"] = lambda request: Answer(413 if len(request.body) > 1000 else 204)
    feed = Publisher(recorder.url)
    known = [tick() for _ in range(8)]

    for event in known:
        a_run(feed, event)

    recorder.wait_for("/", 3)
    feed.close()
    taken = [request for request in recorder.requests if len(request.body) <= 1000]
    told_of = {made.event for one in taken for made in attempts_in(received(one.headers, one.body))}
    assert told_of == {event.get_id() for event in known}


def test_one_that_cannot_be_kept_costs_no_other(recorder: Receiver, functions: Functions) -> None:
    """X-6: A batch that is rejected because of one attempt is halved repeatedly, until only that attempt is lost."""
    recorder.answers["/"] = lambda request: Answer(400 if b"poison" in request.body else 204)
    feed, before = Publisher(recorder.url), lost(functions)
    known = [tick() for _ in range(8)]
    poison = CloudEvent({**tick().get_attributes(), "id": "poison"}, {})

    for event in (*known[:5], poison, *known[5:]):
        a_run(feed, event)

    recorder.wait_for("/", 4)
    feed.close()
    taken = [request for request in recorder.requests if b"poison" not in request.body]
    told_of = [made.event for one in taken for made in attempts_in(received(one.headers, one.body))]
    assert sorted(told_of) == sorted(event.get_id() for event in known)
    assert lost(functions) - before == 1


def test_the_queue_is_bounded_and_the_oldest_are_lost(functions: Functions) -> None:
    """Check that the queue drops its oldest attempts beyond its limit, and counts them in the metrics."""
    before = lost(functions)
    feed = Publisher(NOBODY, SOON)

    for _ in range(KEPT + 100 + 10):
        a_run(feed, tick())

    feed.close()
    assert 10 <= lost(functions) - before <= 110


def test_a_letter_that_no_request_can_carry_ends_nothing(recorder: Receiver) -> None:
    """X-6: A dead letter that cannot be sent over HTTP is lost, and later attempts and dead letters are published."""
    feed, event = Publisher(recorder.url), tick()

    feed.add_dead_letter(CloudEvent({**tick().get_attributes(), "datacontenttype": "€"}, {}))
    feed.add_dead_letter(event)

    awaited(recorder, event.get_id())
    a_run(feed, event)
    recorder.wait_for("/", 2)
    feed.close()


def test_a_letter_that_record_refuses_is_counted_and_costs_no_other(
    recorder: Receiver, functions: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    """X-6: A dead letter that `record` rejects is counted and logged, because no administrator can redrive it."""
    recorder.answers["/"] = lambda request: Answer(403 if request.id == "forged" else 204)
    feed, before, event = Publisher(recorder.url), lost(functions, "dead_letters"), tick()

    feed.add_dead_letter(CloudEvent({**tick().get_attributes(), "id": "forged"}, {}))
    feed.add_dead_letter(event)

    awaited(recorder, event.get_id())
    feed.close()
    assert lost(functions, "dead_letters") - before == 1
    assert [line for line in caplog.messages if line.startswith("record refuses")] == [
        "record refuses a dead letter: 403"
    ]


def test_letters_that_are_lost_while_record_is_away_are_counted(functions: Functions) -> None:
    """X-6: The oldest dead letters, which exceed the queue's limit, are counted; one of them may be in flight."""
    before = lost(functions, "dead_letters")
    feed = Publisher(NOBODY, SOON)

    for _ in range(LETTERS + 10):
        feed.add_dead_letter(tick())

    feed.close()
    assert 9 <= lost(functions, "dead_letters") - before <= 10


def test_the_queue_is_bounded_in_bytes(functions: Functions) -> None:
    """X-6: The queue is also limited in bytes, which include the response but not the event of up to 2 MiB."""
    before = lost(functions)
    feed = Publisher(NOBODY, SOON)
    large = CloudEvent(tick().get_attributes(), {"text": "x" * 2_000_000})

    for _ in range(100):
        with OngoingAttempt("cordon", large, feed) as run:
            run.error = "x" * (KEPT_BYTES // 10)

    feed.close()
    assert 80 <= lost(functions) - before <= 100
    assert run.made().size < KEPT_BYTES // 9


def lost(functions: Functions, what: str = "attempts") -> float:
    text, name = functions.clients["begin"].get("/metrics").text, f"nodemaintenance_{what}_lost_total "
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def test_telling_costs_a_step_next_to_nothing() -> None:
    """Check that a step never waits for publication: the median cost is below 50 µs, even without a receiver."""
    feed, event = Publisher(NOBODY, SOON), tick()
    took = []

    for _ in range(1000):
        started = time.perf_counter()
        a_run(feed, event)
        took.append(time.perf_counter() - started)

    feed.close()
    print(f"a run told in {statistics.median(took) * 1e6:.1f} µs at the median")
    assert statistics.median(took) < 50e-6


def test_the_last_runs_are_told_when_the_process_ends(recorder: Receiver) -> None:
    """Check that `close` publishes the remaining attempts."""
    feed = Publisher(recorder.url)
    a_run(feed, tick())

    feed.close()

    assert len(told(recorder)) == 1


def test_the_last_runs_wait_for_a_recorder_that_comes_again(recorder: Receiver) -> None:
    """Check that `close` retries until `record` accepts the remaining attempts.

    While the product's own node is drained, `record` starts on another node and is unavailable for a moment.
    """
    recorder.answers["/"] = lambda _: Answer(503 if len(recorder.requests) < 4 else 204)
    feed, events_of = Publisher(recorder.url), [tick(), tick()]
    for event in events_of:
        a_run(feed, event)

    feed.close()

    assert {made.event for made in told(recorder)} == {event.get_id() for event in events_of}


def test_an_end_has_its_time(recorder: Receiver) -> None:
    """Check that `close` returns at its time limit although `record` never accepts the attempts.

    The process must end before it is killed.
    """
    recorder.answers["/"] = lambda _: Answer(503)
    feed = Publisher(recorder.url, 1.2)
    a_run(feed, tick())
    began = time.monotonic()

    feed.close()

    assert 1 < time.monotonic() - began < 2
    assert len(recorder.requests) > 1


def test_a_pod_that_is_gone_holds_no_try_for_long() -> None:
    """Check that a connection to a deleted pod times out soon.

    The next connection may reach the other pod of `record`.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        address = deaf.getsockname()
        with socket.create_connection(address):  # fills the backlog of one connection
            others = set(threading.enumerate())
            feed = Publisher("http://{}:{}".format(*address), closing=0.5)
            a_run(feed, tick())
            (thread,) = set(threading.enumerate()) - others
            feed.close()
            thread.join(3)

            assert not thread.is_alive()


@pytest.mark.slow
def test_nobody_waits_long_for_a_recorder_that_ends_as_well() -> None:
    """Check that `close` waits only briefly for a `record` on the same host, which ends with all other processes."""
    feed = Publisher(NOBODY)
    a_run(feed, tick())
    began = time.monotonic()

    feed.close()

    assert time.monotonic() - began < 3


def test_what_comes_while_the_last_letter_is_on_its_way_is_told(recorder: Receiver) -> None:
    """Check that an attempt is published if it is added while the last dead letter is being retried.

    The process ends during that retry.
    """
    feed = Publisher(recorder.url)
    closer = threading.Thread(target=feed.close)

    def answer(_: object) -> Answer:
        if len(recorder.requests) == 1:
            a_run(feed, tick())
            closer.start()
            return Answer(503)
        return Answer(204)

    recorder.answers["/"] = answer
    feed.add_dead_letter(tick())
    recorder.wait(lambda: closer.ident is not None)
    closer.join(PATIENCE)

    kinds = [request.headers["ce-type"] for request in recorder.requests]
    assert kinds[:2] == [tick().get_type()] * 2
    assert events.ATTEMPTS_MADE in kinds
