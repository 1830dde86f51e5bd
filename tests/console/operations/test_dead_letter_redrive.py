"""Tests of redriving dead letters: the address of the function, several dead letters, and concurrent redrives."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.dead_letter_redrive import Item, Run, item_of, items, redriven
from console.operations.replay_runner import Targets, Wanted
from eventing import events
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.journal.entries import Entry
from eventing.journal.store import Journal, Query
from kube.client.sync_client import Cluster
from localcluster.cluster import LocalCluster
from localcluster.processes import free_port
from tests.console.operations.test_replay_runner import trigger
from tests.postgresql import PostgreSQL
from tests.receiver import Answer, Received, Receiver

NAMESPACE = "node-maintenance"
ELSEWHERE = """
import sys
from console.operations.dead_letter_redrive import Item, redriven
from eventing.journal.store import Journal, Query

url, function, broker = sys.argv[1:]
book = Journal(url)
(letter,) = book.select(Query(dead=True))
(result,) = redriven([Item(letter, function)], broker, book)
print("failed" if result.failed else "delivered")
"""
"""Program that redrives the only dead letter of a journal in another process."""


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Journal]:
    """Yield an empty journal."""
    with closing(Journal(tmp_path / "journal.db")) as opened:
        yield opened


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Cluster]:
    """Yield a client of a cluster without Triggers, so that the shipped manifests name the subscribers."""
    door = Cluster(str(cluster.kubeconfig))
    yield door
    door.close()


def letters(book: Journal, destination: str, *keys: str, source: str = "/s") -> list[Entry]:
    """Record dead letters with this destination, and return them."""
    rest = {"source": source, "type": events.MAINTENANCE_BEGUN, "datacontenttype": "application/json"}
    for key in keys:
        event = CloudEvent({"id": key, **rest}, {})
        book.write(as_dead_letter(event, DeadLetter(destination, 503, "away")))
    return book.select(Query(dead=True, ids=keys))


def test_a_letter_s_own_address_is_never_asked(receiver: Receiver, book: Journal, admin: Cluster) -> None:
    """X-6: A redrive takes only the function's name from a dead letter, and never posts to the dead letter's address.

    Any client that may post to `record` may write any address into a dead letter.
    """
    found = letters(book, f"{receiver.url}/evil/cordon", "1")

    nowhere = items(found, "", NAMESPACE, admin)
    below = items(found, receiver.url, NAMESPACE, admin)
    done = list(redriven([*nowhere, *below], f"{receiver.url}/broker", book))

    assert [result.failed for result in done] == [True, False]
    assert "no Trigger says where cordon is" in done[0].problem
    assert [request.path for request in receiver.requests] == ["/cordon"]


@pytest.mark.parametrize(
    ("function", "url", "problem"),
    [("cordon", "http://cordon.example", ""), ("status", "", "no Trigger says where status is: name the URL below")],
)
def test_it_is_of_no_account_where_another_function_is(
    book: Journal, admin: Cluster, tmp_path: Path, function: str, url: str, problem: str
) -> None:
    """X-6: A redrive needs only the address of its own function; other Triggers may have no address."""
    file = tmp_path / "triggers.yaml"
    file.write_text(f"{trigger('cordon-on-begun', {}, 'http://cordon.example')}\n---\n{trigger('status-on-begun', {})}")
    (letter,) = letters(book, f"http://gone/{function}", "1")

    found = item_of(letter, Targets(Wanted(manifests=(file,)), admin))

    assert found.url == url
    assert found.problem.startswith(problem)


@pytest.mark.parametrize("name", ["restore", "nobody", "", "record", "..%2fx"])
def test_a_function_that_no_trigger_gives_such_an_event_gets_none(
    receiver: Receiver, book: Journal, admin: Cluster, name: str
) -> None:
    """X-6: A dead letter that names a function without a Trigger for such an event is not delivered."""
    (item,) = items(letters(book, f"http://evil/{name}", "1"), receiver.url, NAMESPACE, admin)

    (result,) = redriven([item], f"{receiver.url}/broker", book)

    assert "no Trigger delivers such an event to" in result.problem
    assert receiver.requests == []


def test_one_that_nobody_answers_hides_no_other(receiver: Receiver, book: Journal) -> None:
    """X-6: An unreachable function does not stop the other redrives; each has a result and a recorded attempt."""
    found = letters(book, "http://gone/cordon", "1", "2", "3")
    urls = [f"{receiver.url}/cordon", f"http://127.0.0.1:{free_port()}/cordon", f"{receiver.url}/cordon"]

    done = list(redriven([Item(*pair) for pair in zip(found, urls, strict=True)], f"{receiver.url}/broker", book))

    assert [result.failed for result in done] == [False, True, False]
    assert [len(entry.attempts) for entry in book.select(Query(dead=True))] == [1, 1, 1]
    assert done[1].attempt is not None
    assert "cannot be reached" in done[1].attempt.error


def test_none_is_redriven_twice_at_once(receiver: Receiver, book: Journal) -> None:
    """X-6: A second redrive of a dead letter delivers nothing, neither during the first one nor after it."""
    (letter,) = letters(book, "http://gone/cordon", "1")
    item, broker = Item(letter, f"{receiver.url}/cordon"), f"{receiver.url}/broker"
    go = threading.Event()

    def slow(_: Received) -> Answer:
        go.wait(10)
        return Answer(204)

    receiver.answers["/cordon"] = slow
    run = Run([item], broker, book)
    receiver.wait_for("/cordon")

    (second,) = redriven([item], broker, book)
    under_way = run.under_way
    go.set()
    run.await_end(10)
    (third,) = redriven([item], broker, book)

    assert under_way
    assert not run.under_way
    assert [result.problem for result in (second, third)] == [
        "it is being redriven already",
        "it was redriven meanwhile",
    ]
    assert [result.failed for result in (second, third, *run.results)] == [True, False, False]
    assert len(receiver.at("/cordon")) == 1


def test_two_letters_of_one_event_and_function_are_redriven_once(receiver: Receiver, book: Journal) -> None:
    """X-6: Two dead letters for one event and function, as from two brokers, are redriven once."""
    letters(book, "http://gone/cordon", "1")
    found = letters(book, "http://elsewhere/cordon", "1")
    assert len(found) == 2

    done = list(redriven([Item(each, f"{receiver.url}/cordon") for each in found], f"{receiver.url}/broker", book))

    assert [(result.failed, result.problem) for result in done] == [(False, ""), (False, "it was redriven meanwhile")]
    assert len(receiver.at("/cordon")) == 1


@pytest.mark.parametrize(
    ("key", "source", "function"), [("2", "/s", "cordon"), ("1", "/t", "cordon"), ("1", "/s", "evict")]
)
def test_another_letter_of_its_number_is_not_delivered_in_its_place(
    receiver: Receiver, book: Journal, tmp_path: Path, key: str, source: str, function: str
) -> None:
    """X-6: A dead letter is not delivered in place of another one with the same number in a replaced journal.

    The journal's file may be replaced while a user reads the list.
    """
    (letter,) = letters(book, "http://gone/cordon", "1")
    for file in tmp_path.glob("journal.db*"):
        file.unlink()
    with closing(Journal(tmp_path / "journal.db")) as other:
        (found,) = letters(other, f"http://gone/{function}", key, source=source)
    assert found.seq == letter.seq

    (done,) = redriven([Item(letter, f"{receiver.url}/cordon")], f"{receiver.url}/broker", book)

    assert done.failed
    assert "the journal has it no more: list what is open now" in done.problem
    assert receiver.requests == []


def test_of_two_processes_that_redrive_one_does(receiver: Receiver, postgresql: PostgreSQL) -> None:
    """X-6: Of two processes that redrive through one PostgreSQL journal, only one delivers the dead letter."""
    url, broker, go = postgresql.database(), f"{receiver.url}/broker", threading.Event()

    def slow(_: Received) -> Answer:
        go.wait(10)
        return Answer(204)

    receiver.answers["/cordon"] = slow
    with closing(Journal(url)) as book:
        (letter,) = letters(book, "http://gone/cordon", "1")
        item = Item(letter, f"{receiver.url}/cordon")
        words = [sys.executable, "-c", ELSEWHERE, url, item.url, broker]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as elsewhere:
            receiver.wait_for("/cordon")
            (second,) = redriven([item], broker, book)
            go.set()
            said, _ = elsewhere.communicate(timeout=10)
        (third,) = redriven([item], broker, book)

    assert said == "delivered\n"
    assert [second.problem, third.problem] == ["it is being redriven already", "it was redriven meanwhile"]
    assert len(receiver.at("/cordon")) == 1
