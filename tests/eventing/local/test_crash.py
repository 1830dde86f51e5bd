"""Tests that no event is lost if the local delivery crashes or is stopped."""

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

from localcluster.http_receiver import ReceivedRequest, Receiver, Response
from tests.eventing.local.broker_process import BrokerProcess, build_binary_headers, build_event_response, build_trigger

pytestmark = pytest.mark.slow

StartBroker = Callable[..., BrokerProcess]
SHORT_TIMEOUT_PROGRAM = """
from eventing.local import outbox
outbox.BUSY_TIMEOUT_SECONDS = 0.5
from eventing.local.broker import main
main()
"""
"""Python script that runs the broker with a shorter timeout for a locked database."""


@pytest.fixture
def short_database_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the time for which brokers wait for a locked database."""
    monkeypatch.setattr(BrokerProcess, "program", ("-c", SHORT_TIMEOUT_PROGRAM))


def count_rows(broker: BrokerProcess, table: str) -> int:
    """Return the number of rows in a table of the outbox."""
    with closing(sqlite3.connect(broker.directory / "delivery.db")) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - constant table names


def test_broker_killed_during_delivery_loses_no_event(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a broker killed during delivery delivers all accepted events and their replies after a restart."""
    is_killed = threading.Event()

    def answer_with_event(request: ReceivedRequest) -> Response:
        if len(receiver.list_requests("/f")) > 50 and not is_killed.is_set():
            is_killed.wait(0.2)
        return build_event_response(id=f"reply-{request.id}", type="b")

    receiver.answers["/f"] = answer_with_event
    broker = start_broker(build_trigger("f", type="a"), build_trigger("g", type="b"))
    ids = {str(number) for number in range(200)}

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: broker.post(id=number, type="a", partitionkey=f"n{int(number) % 7}"), sorted(ids)))
    receiver.wait_for_requests("/f", 60)
    broker.kill()
    pending = count_rows(broker, "delivery")
    is_killed.set()
    broker.restart()

    receiver.wait_until(lambda: {request.id for request in receiver.list_requests("/f")} == ids)
    receiver.wait_until(
        lambda: {request.id for request in receiver.list_requests("/g")} == {f"reply-{number}" for number in ids}
    )
    assert pending > 20


def test_events_accepted_before_kill_are_delivered_in_order(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that events that were accepted before a kill are delivered in order after the broker's restart.

    The subscriber is unavailable until then. All events have the same partition key.
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


def test_broker_finishes_request_in_flight_after_sigterm(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that the broker finishes a request in flight after SIGTERM, so that the event is not delivered twice."""
    is_called, may_respond = threading.Event(), threading.Event()

    def respond_when_test_permits(_: ReceivedRequest) -> Response:
        is_called.set()
        may_respond.wait(10)
        return build_event_response(id="2", type="b")

    receiver.answers["/f"] = respond_when_test_permits
    broker = start_broker(build_trigger("f", type="a"), build_trigger("g", type="b"))
    broker.post(type="a")
    assert is_called.wait(10)

    broker.process.terminate()
    may_respond.set()
    assert broker.stop() == 0
    broker.restart()

    receiver.wait_for_requests("/g")
    assert len(receiver.list_requests("/f")) == 1


def test_deliveries_of_removed_trigger_are_dropped(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that pending deliveries of a removed Trigger are dropped and logged, and that other deliveries succeed."""
    receiver.answers["/old"] = lambda _: Response(503)
    receiver.answers["/kept"] = lambda _: Response(503)
    slow_delivery = {"retry": 9, "backoffPolicy": "exponential", "backoffDelay": "PT5S"}
    broker = start_broker(build_trigger("old", delivery=slow_delivery), build_trigger("kept", delivery=slow_delivery))
    broker.post()
    broker.wait_for_log_line(msg="retrying", trigger="old")
    broker.kill()
    broker.manifests.write_text(yaml.safe_dump(build_trigger("kept")))
    receiver.answers["/kept"] = lambda _: Response()

    broker.restart()

    broker.wait_for_log_line(msg="dropped: the Trigger no longer exists", trigger="old")
    broker.wait_for_log_line(msg="delivered", trigger="kept")
    broker.stop()
    assert count_rows(broker, "event") == 0


@pytest.mark.usefixtures("short_database_timeout")
def test_event_is_rejected_while_database_is_locked(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that an event is rejected with 503 while the database is locked, so that the sender retries."""
    broker = start_broker(build_trigger("f"))
    locking_connection = sqlite3.connect(broker.directory / "delivery.db", isolation_level=None)
    locking_connection.execute("BEGIN IMMEDIATE")

    response = requests.post(broker.url, data="{}", headers=build_binary_headers(), timeout=20)
    locking_connection.execute("ROLLBACK")
    locking_connection.close()

    assert response.status_code == 503
    assert response.text.count("\n") == 1
    broker.post()
    broker.wait_for_log_line(msg="delivered")


@pytest.mark.usefixtures("short_database_timeout")
def test_broker_exits_with_one_line_error_if_database_is_not_writable(
    receiver: Receiver, start_broker: StartBroker
) -> None:
    """Check that a broker that cannot write its database exits with a one-line error, and delivers after a restart.

    Otherwise, it would continue to make deliveries that it cannot acknowledge.
    """
    broker = start_broker(build_trigger("f"))
    locking_connection = sqlite3.connect(
        broker.directory / "delivery.db", isolation_level=None, check_same_thread=False
    )

    def lock_database(_: ReceivedRequest) -> Response:
        if not locking_connection.in_transaction:
            locking_connection.execute("BEGIN IMMEDIATE")
        return Response()

    receiver.answers["/f"] = lock_database
    broker.post()
    broker.process.wait(20)
    assert broker.stop() == 1
    locking_connection.close()
    receiver.answers["/f"] = lambda _: Response()
    assert broker.output.splitlines()[-1] == "Error: database: database is locked"
    broker.restart()

    broker.wait_for_log_line(msg="delivered")


INVALID_EVENTS = {
    "invalid traceparent": ({"ce-traceparent": "00-a%0Ab"}, "delivered"),
    "invalid header": ({"ce-node": "a\nb"}, "dropped"),
}


@pytest.mark.parametrize(("invalid_headers", "outcome"), INVALID_EVENTS.values(), ids=INVALID_EVENTS)
def test_invalid_event_in_outbox_does_not_stop_broker(
    receiver: Receiver, start_broker: StartBroker, invalid_headers: dict[str, str], outcome: str
) -> None:
    """Check that an invalid event in the outbox is delivered or dropped, and that later events are delivered.

    An older version may have accepted the invalid event. The later event has the same partition key.
    """
    broker = start_broker(build_trigger("f"))
    broker.kill()
    with closing(sqlite3.connect(broker.directory / "delivery.db")) as database, database:
        row = (json.dumps({**build_binary_headers(id="poison", partitionkey="k"), **invalid_headers}), b"{}")
        number = database.execute("INSERT INTO event (headers, body) VALUES (?, ?)", row).lastrowid
        database.execute("INSERT INTO delivery (event, trigger) VALUES (?, 'f')", (number,))

    broker.restart()
    broker.post(id="next", partitionkey="k")

    broker.wait_for_log_line(msg="delivered", id="next")
    assert broker.find_log_lines(msg=outcome, id="poison")
    assert broker.process.poll() is None


def test_broker_rejects_outbox_with_newer_schema_version(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that an outbox with a newer schema version stays unchanged; the error names file, versions and remedy."""
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
