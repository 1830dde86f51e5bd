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

from tests.eventing.local.broker_process import Broker, binary, reply, trigger
from tests.receiver import Answer, Received, Receiver

pytestmark = pytest.mark.slow

Start = Callable[..., Broker]
IMPATIENT = """
from eventing.local import outbox
outbox.BUSY_SECONDS = 0.5
from eventing.local.broker import main
main()
"""
"""Program that runs the broker with a shorter timeout for a locked database."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make brokers give up soon if the database is locked."""
    monkeypatch.setattr(Broker, "program", ("-c", IMPATIENT))


def count(broker: Broker, table: str) -> int:
    """Return the number of rows in a table of the outbox."""
    with closing(sqlite3.connect(broker.folder / "delivery.db")) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - a name from below


def test_a_kill_in_the_middle_loses_nothing(receiver: Receiver, start: Start) -> None:
    """Check that a broker killed during delivery has lost no accepted event and no reply after its restart."""
    enough = threading.Event()

    def answer(request: Received) -> Answer:
        if len(receiver.at("/f")) > 50 and not enough.is_set():
            enough.wait(0.2)
        return reply(id=f"reply-{request.id}", type="b")

    receiver.answers["/f"] = answer
    broker = start(trigger("f", type="a"), trigger("g", type="b"))
    ids = {str(number) for number in range(200)}

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: broker.post(id=number, type="a", partitionkey=f"n{int(number) % 7}"), sorted(ids)))
    receiver.wait_for("/f", 60)
    broker.kill()
    pending = count(broker, "delivery")
    enough.set()
    broker.restart()

    receiver.wait(lambda: {request.id for request in receiver.at("/f")} == ids)
    receiver.wait(lambda: {request.id for request in receiver.at("/g")} == {f"reply-{number}" for number in ids})
    assert pending > 20


def test_what_was_acknowledged_while_nothing_could_be_delivered_is_delivered_later_in_order(
    receiver: Receiver, start: Start
) -> None:
    """Check that events accepted before a kill are delivered after a restart in the order of their acceptance.

    Before the kill, the subscriber is unavailable. All events of the test have the same partition key.
    """
    receiver.answers["/f"] = lambda _: Answer(503)
    broker = start(trigger("f", delivery={"retry": 100, "backoffPolicy": "exponential", "backoffDelay": "PT0.1S"}))
    for number in range(20):
        broker.post(id=str(number), partitionkey="n1")
    broker.kill()
    receiver.requests.clear()
    receiver.answers["/f"] = lambda _: Answer()

    broker.restart()

    assert [request.id for request in receiver.wait_for("/f", 20)] == [str(number) for number in range(20)]


def test_a_stop_lets_a_request_under_way_end(receiver: Receiver, start: Start) -> None:
    """Check that SIGTERM lets a request in flight finish, so that the event is not delivered twice."""
    asked, go = threading.Event(), threading.Event()

    def answer(_: Received) -> Answer:
        asked.set()
        go.wait(10)
        return reply(id="2", type="b")

    receiver.answers["/f"] = answer
    broker = start(trigger("f", type="a"), trigger("g", type="b"))
    broker.post(type="a")
    assert asked.wait(10)

    broker.process.terminate()
    go.set()
    assert broker.stop() == 0
    broker.restart()

    receiver.wait_for("/g")
    assert len(receiver.at("/f")) == 1


def test_deliveries_of_a_trigger_that_is_gone_are_dropped(receiver: Receiver, start: Start) -> None:
    """Check that deliveries of a removed Trigger are dropped with a log line, and that others are delivered."""
    receiver.answers["/old"] = lambda _: Answer(503)
    receiver.answers["/kept"] = lambda _: Answer(503)
    slow = {"retry": 9, "backoffPolicy": "exponential", "backoffDelay": "PT5S"}
    broker = start(trigger("old", delivery=slow), trigger("kept", delivery=slow))
    broker.post()
    broker.wait_line(msg="retrying", trigger="old")
    broker.kill()
    broker.manifests.write_text(yaml.safe_dump(trigger("kept")))
    receiver.answers["/kept"] = lambda _: Answer()

    broker.restart()

    broker.wait_line(msg="dropped: its Trigger is gone", trigger="old")
    broker.wait_line(msg="delivered", trigger="kept")
    broker.stop()
    assert count(broker, "event") == 0


@pytest.mark.usefixtures("impatient")
def test_an_event_that_cannot_be_kept_is_not_accepted(receiver: Receiver, start: Start) -> None:
    """Check that an event is refused with 503 while the database is locked, so that the sender retries."""
    broker = start(trigger("f"))
    other = sqlite3.connect(broker.folder / "delivery.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    refused = requests.post(broker.url, data="{}", headers=binary(), timeout=20)
    other.execute("ROLLBACK")
    other.close()

    assert refused.status_code == 503
    assert refused.text.count("\n") == 1
    broker.post()
    broker.wait_line(msg="delivered")


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_can_no_longer_write_ends_with_one_line(receiver: Receiver, start: Start) -> None:
    """Check that a broker that cannot write any more ends with one line, and delivers everything after a restart.

    Otherwise it would continue with deliveries that it cannot acknowledge.
    """
    broker = start(trigger("f"))
    other = sqlite3.connect(broker.folder / "delivery.db", isolation_level=None, check_same_thread=False)

    def lock(_: Received) -> Answer:
        if not other.in_transaction:
            other.execute("BEGIN IMMEDIATE")
        return Answer()

    receiver.answers["/f"] = lock
    broker.post()
    broker.process.wait(20)
    assert broker.stop() == 1
    other.close()
    receiver.answers["/f"] = lambda _: Answer()
    assert broker.text.splitlines()[-1] == "Error: database: database is locked"
    broker.restart()

    broker.wait_line(msg="delivered")


BY_AN_OLDER_DOOR = {
    "a trace that is no header": ({"ce-traceparent": "00-a%0Ab"}, "delivered"),
    "what is no header": ({"ce-node": "a\nb"}, "dropped"),
}


@pytest.mark.parametrize(("poison", "outcome"), BY_AN_OLDER_DOOR.values(), ids=BY_AN_OLDER_DOOR)
def test_an_outbox_that_holds_poison_is_no_end(
    receiver: Receiver, start: Start, poison: dict[str, str], outcome: str
) -> None:
    """Check that an invalid event in the outbox, accepted by an older version, is delivered or dropped with a log line.

    Later events of the same key are delivered.
    """
    broker = start(trigger("f"))
    broker.kill()
    with closing(sqlite3.connect(broker.folder / "delivery.db")) as database, database:
        row = (json.dumps({**binary(id="poison", partitionkey="k"), **poison}), b"{}")
        number = database.execute("INSERT INTO event (headers, body) VALUES (?, ?)", row).lastrowid
        database.execute("INSERT INTO delivery (event, trigger) VALUES (?, 'f')", (number,))

    broker.restart()
    broker.post(id="next", partitionkey="k")

    broker.wait_line(msg="delivered", id="next")
    assert broker.find(msg=outcome, id="poison")
    assert broker.process.poll() is None


def test_an_outbox_of_a_newer_version_is_refused_with_one_line(receiver: Receiver, start: Start) -> None:
    """Check that an outbox of a newer version is refused unchanged, in a line that names file, versions and remedy."""
    receiver.answers["/f"] = lambda _: Answer(503)
    broker = start(trigger("f", delivery={"retry": 100, "backoffPolicy": "exponential", "backoffDelay": "PT5S"}))
    broker.post()
    broker.stop()
    with closing(sqlite3.connect(broker.folder / "delivery.db")) as database:
        ours = int(database.execute("PRAGMA user_version").fetchone()[0])
        database.execute(f"PRAGMA user_version = {ours + 1}")

    broker.start()

    assert broker.process.wait(20) == 1
    assert broker.stop() == 1
    file = broker.folder / "delivery.db"
    message = f"Error: database: {file} is an outbox of version {ours + 1}, this program knows none after {ours}: "
    assert broker.text.splitlines()[-1].startswith(message)
    assert count(broker, "delivery") == 1
