"""Tests that a crash or a stop of the local delivery loses no event."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import requests
import yaml

from tests.eventing.local.broker_process import BrokerProcess, build_binary_headers, build_event_response, build_trigger
from tests.receiver import ReceivedRequest, Receiver, Response

pytestmark = pytest.mark.slow

StartBroker = Callable[..., BrokerProcess]
SHORT_TIMEOUT_PROGRAM = """
from eventing.local import outbox
outbox.BUSY_TIMEOUT_SECONDS = 0.5
from eventing.local.broker import main
main()
"""
"""Program that runs the broker with a shorter timeout for a locked database."""


@pytest.fixture
def short_database_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make brokers give up soon if the database is locked."""
    monkeypatch.setattr(BrokerProcess, "program", ("-c", SHORT_TIMEOUT_PROGRAM))


def count_rows(broker: BrokerProcess, table: str) -> int:
    """Return the number of rows in a table of the outbox."""
    with closing(sqlite3.connect(broker.directory / "delivery.db")) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - a name from below


def test_kill_during_delivery_loses_no_event(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a broker killed during delivery has lost no accepted event and no reply after its restart."""
    called_often = threading.Event()

    def answer_with_event(request: ReceivedRequest) -> Response:
        if len(receiver.list_requests("/f")) > 50 and not called_often.is_set():
            called_often.wait(0.2)
        return build_event_response(id=f"reply-{request.id}", type="b")

    receiver.answers["/f"] = answer_with_event
    broker = start_broker(build_trigger("f", type="a"), build_trigger("g", type="b"))
    ids = {str(number) for number in range(200)}

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: broker.post(id=number, type="a", partitionkey=f"n{int(number) % 7}"), sorted(ids)))
    receiver.wait_for_requests("/f", 60)
    broker.kill()
    pending = count_rows(broker, "delivery")
    called_often.set()
    broker.restart()

    receiver.wait_until(lambda: {request.id for request in receiver.list_requests("/f")} == ids)
    receiver.wait_until(
        lambda: {request.id for request in receiver.list_requests("/g")} == {f"reply-{number}" for number in ids}
    )
    assert pending > 20


def test_events_accepted_before_kill_are_delivered_in_order(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that events accepted before a kill are delivered after a restart in the order of their acceptance.

    Before the kill, the subscriber is unavailable. All events of the test have the same partition key.
    """
    receiver.answers["/f"] = lambda _: Response(503)
    broker = start_broker(
        build_trigger("f", delivery={"retry": 100, "backoffPolicy": "exponential", "backoffDelay": "PT0.1S"})
    )
    for number in range(20):
        broker.post(id=str(number), partitionkey="n1")
    broker.kill()
    receiver.requests.clear()
    receiver.answers["/f"] = lambda _: Response()

    broker.restart()

    assert [request.id for request in receiver.wait_for_requests("/f", 20)] == [str(number) for number in range(20)]


def test_sigterm_lets_request_in_flight_finish(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that SIGTERM lets a request in flight finish, so that the event is not delivered twice."""
    called, release = threading.Event(), threading.Event()

    def answer_when_released(_: ReceivedRequest) -> Response:
        called.set()
        release.wait(10)
        return build_event_response(id="2", type="b")

    receiver.answers["/f"] = answer_when_released
    broker = start_broker(build_trigger("f", type="a"), build_trigger("g", type="b"))
    broker.post(type="a")
    assert called.wait(10)

    broker.process.terminate()
    release.set()
    assert broker.stop() == 0
    broker.restart()

    receiver.wait_for_requests("/g")
    assert len(receiver.list_requests("/f")) == 1


def test_deliveries_of_removed_trigger_are_dropped(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that deliveries of a removed Trigger are dropped with a log line, and that others are delivered."""
    receiver.answers["/old"] = lambda _: Response(503)
    receiver.answers["/kept"] = lambda _: Response(503)
    slow = {"retry": 9, "backoffPolicy": "exponential", "backoffDelay": "PT5S"}
    broker = start_broker(build_trigger("old", delivery=slow), build_trigger("kept", delivery=slow))
    broker.post()
    broker.wait_line(msg="retrying", trigger="old")
    broker.kill()
    broker.manifests.write_text(yaml.safe_dump(build_trigger("kept")))
    receiver.answers["/kept"] = lambda _: Response()

    broker.restart()

    broker.wait_line(msg="dropped: the Trigger no longer exists", trigger="old")
    broker.wait_line(msg="delivered", trigger="kept")
    broker.stop()
    assert count_rows(broker, "event") == 0


@pytest.mark.usefixtures("short_database_timeout")
def test_event_is_refused_while_database_is_locked(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that an event is refused with 503 while the database is locked, so that the sender retries."""
    broker = start_broker(build_trigger("f"))
    other = sqlite3.connect(broker.directory / "delivery.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    response = requests.post(broker.url, data="{}", headers=build_binary_headers(), timeout=20)
    other.execute("ROLLBACK")
    other.close()

    assert response.status_code == 503
    assert response.text.count("\n") == 1
    broker.post()
    broker.wait_line(msg="delivered")


@pytest.mark.usefixtures("short_database_timeout")
def test_broker_that_cannot_write_ends_with_one_line(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a broker that cannot write any more ends with one line, and delivers everything after a restart.

    Otherwise it would continue with deliveries that it cannot acknowledge.
    """
    broker = start_broker(build_trigger("f"))
    other = sqlite3.connect(broker.directory / "delivery.db", isolation_level=None, check_same_thread=False)

    def lock_database(_: ReceivedRequest) -> Response:
        if not other.in_transaction:
            other.execute("BEGIN IMMEDIATE")
        return Response()

    receiver.answers["/f"] = lock_database
    broker.post()
    broker.process.wait(20)
    assert broker.stop() == 1
    other.close()
    receiver.answers["/f"] = lambda _: Response()
    assert broker.output.splitlines()[-1] == "Error: database: database is locked"
    broker.restart()

    broker.wait_line(msg="delivered")


INVALID_EVENTS = {
    "an invalid trace": ({"ce-traceparent": "00-a%0Ab"}, "delivered"),
    "an invalid header": ({"ce-node": "a\nb"}, "dropped"),
}


@pytest.mark.parametrize(("invalid_headers", "outcome"), INVALID_EVENTS.values(), ids=INVALID_EVENTS)
def test_invalid_event_in_outbox_does_not_stop_the_broker(
    receiver: Receiver, start_broker: StartBroker, invalid_headers: dict[str, str], outcome: str
) -> None:
    """Check that an invalid event in the outbox, accepted by an older version, is delivered or dropped with a log line.

    Later events of the same key are delivered.
    """
    broker = start_broker(build_trigger("f"))
    broker.kill()
    with closing(sqlite3.connect(broker.directory / "delivery.db")) as database, database:
        row = (json.dumps({**build_binary_headers(id="poison", partitionkey="k"), **invalid_headers}), b"{}")
        number = database.execute("INSERT INTO event (headers, body) VALUES (?, ?)", row).lastrowid
        database.execute("INSERT INTO delivery (event, trigger) VALUES (?, 'f')", (number,))

    broker.restart()
    broker.post(id="next", partitionkey="k")

    broker.wait_line(msg="delivered", id="next")
    assert broker.find(msg=outcome, id="poison")
    assert broker.process.poll() is None


def test_outbox_of_newer_version_is_refused(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that an outbox of a newer version is refused unchanged, in a line that names file, versions and remedy."""
    receiver.answers["/f"] = lambda _: Response(503)
    broker = start_broker(
        build_trigger("f", delivery={"retry": 100, "backoffPolicy": "exponential", "backoffDelay": "PT5S"})
    )
    broker.post()
    broker.stop()
    with closing(sqlite3.connect(broker.directory / "delivery.db")) as database:
        current_version = int(database.execute("PRAGMA user_version").fetchone()[0])
        database.execute(f"PRAGMA user_version = {current_version + 1}")

    broker.start()

    assert broker.process.wait(20) == 1
    assert broker.stop() == 1
    file = broker.directory / "delivery.db"
    message = (
        f"Error: database: {file} has version {current_version + 1}, "
        f"but this program supports versions up to {current_version}: "
    )
    assert broker.output.splitlines()[-1].startswith(message)
    assert count_rows(broker, "delivery") == 1
