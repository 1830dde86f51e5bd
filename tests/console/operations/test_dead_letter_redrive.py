"""Tests for redriving dead letters: the function's address, several dead letters, and concurrent redrives."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.dead_letter_redrive import (
    BackgroundRedrive,
    RedriveItem,
    build_redrive_item,
    build_redrive_items,
    redrive_dead_letters,
)
from console.operations.replay_targets import TargetOptions, TargetResolver
from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.journal.entries import Entry
from eventing.journal.store import Journal, Query
from kube.client.sync_client import SyncClient
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import ReceivedRequest, Receiver, Response
from localcluster.processes import reserve_port
from tests.console.operations.test_replay import build_trigger
from tests.postgresql import PostgreSQL

NAMESPACE = "node-maintenance"
REDRIVE_PROGRAM = """
import sys
from console.operations.dead_letter_redrive import RedriveItem, redrive_dead_letters
from eventing.journal.store import Journal, Query

url, function, broker = sys.argv[1:]
journal = Journal(url)
(dead_letter,) = journal.select(Query(dead_letters_only=True))
(result,) = redrive_dead_letters([RedriveItem(dead_letter, function)], broker, journal)
print("failed" if result.failed else "delivered")
"""
"""Python script that redrives the only dead letter in a journal, to be run as a second process."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Yield an empty journal."""
    with closing(Journal(tmp_path / "journal.db")) as empty_journal:
        yield empty_journal


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[SyncClient]:
    """Yield an API client for a cluster without Triggers, so that subscribers are read from the shipped manifests."""
    sync_client = SyncClient(str(cluster.kubeconfig))
    yield sync_client
    sync_client.close()


def record_dead_letters(journal: Journal, destination: str, *event_ids: str, source: str = "/s") -> list[Entry]:
    """Record dead letters with this destination, and return their journal entries."""
    attributes = {"source": source, "type": events.MAINTENANCE_BEGUN, "datacontenttype": "application/json"}
    for event_id in event_ids:
        event = CloudEvent({"id": event_id, **attributes}, {})
        journal.write_event(add_dead_letter_extensions(event, DeadLetter(destination, 503, "away")))
    return journal.select(Query(dead_letters_only=True, ids=event_ids))


def test_address_in_dead_letter_is_never_used(receiver: Receiver, journal: Journal, client: SyncClient) -> None:
    """X-6: a redrive reads only the function's name from a dead letter, and never posts to the address in it.

    Any client that may post to `record` can write any address into a dead letter.
    """
    dead_letters = record_dead_letters(journal, f"{receiver.url}/evil/cordon", "1")

    items_without_url = build_redrive_items(dead_letters, "", NAMESPACE, client)
    items_with_url = build_redrive_items(dead_letters, receiver.url, NAMESPACE, client)
    results = list(redrive_dead_letters([*items_without_url, *items_with_url], f"{receiver.url}/broker", journal))

    assert [result.failed for result in results] == [True, False]
    assert "no Trigger has the address of cordon" in results[0].problem
    assert [request.path for request in receiver.requests] == ["/cordon"]


@pytest.mark.parametrize(
    ("function", "url", "problem"),
    [
        ("cordon", "http://cordon.example", ""),
        ("status", "", "no Trigger has the address of status: name the functions' URL"),
    ],
)
def test_redrive_requires_only_address_of_called_function(
    journal: Journal, client: SyncClient, tmp_path: Path, function: str, url: str, problem: str
) -> None:
    """X-6: a redrive needs only the address of the function that it calls, even if other Triggers have no address."""
    file = tmp_path / "triggers.yaml"
    file.write_text(
        f"{build_trigger('cordon-on-begun', {}, 'http://cordon.example')}\n---\n{build_trigger('status-on-begun', {})}"
    )
    (dead_letter,) = record_dead_letters(journal, f"http://gone/{function}", "1")

    item = build_redrive_item(dead_letter, TargetResolver(TargetOptions(manifests=(file,)), client))

    assert item.function_url == url
    assert item.problem.startswith(problem)


@pytest.mark.parametrize("name", ["restore", "unknown", "", "record", "..%2fx"])
def test_dead_letter_is_not_delivered_to_function_without_matching_trigger(
    receiver: Receiver, journal: Journal, client: SyncClient, name: str
) -> None:
    """X-6: a dead letter is not delivered if its function has no Trigger that matches the event."""
    (item,) = build_redrive_items(
        record_dead_letters(journal, f"http://evil/{name}", "1"), receiver.url, NAMESPACE, client
    )

    (result,) = redrive_dead_letters([item], f"{receiver.url}/broker", journal)

    assert "no Trigger delivers this event to" in result.problem
    assert receiver.requests == []


def test_unreachable_function_does_not_prevent_other_redrives(receiver: Receiver, journal: Journal) -> None:
    """X-6: an unreachable function does not prevent other redrives, and each redrive has a recorded attempt."""
    dead_letters = record_dead_letters(journal, "http://gone/cordon", "1", "2", "3")
    urls = [f"{receiver.url}/cordon", f"http://127.0.0.1:{reserve_port()}/cordon", f"{receiver.url}/cordon"]

    results = list(
        redrive_dead_letters(
            [RedriveItem(*pair) for pair in zip(dead_letters, urls, strict=True)], f"{receiver.url}/broker", journal
        )
    )

    assert [result.failed for result in results] == [False, True, False]
    assert [len(entry.attempts) for entry in journal.select(Query(dead_letters_only=True))] == [1, 1, 1]
    assert results[1].attempt is not None
    assert "the connection failed" in results[1].attempt.error


def test_dead_letter_is_not_redriven_twice(receiver: Receiver, journal: Journal) -> None:
    """X-6: a second redrive of a dead letter delivers nothing, whether during or after the first redrive."""
    (dead_letter,) = record_dead_letters(journal, "http://gone/cordon", "1")
    item, broker = RedriveItem(dead_letter, f"{receiver.url}/cordon"), f"{receiver.url}/broker"
    release = threading.Event()

    def respond_when_released(_: ReceivedRequest) -> Response:
        release.wait(10)
        return Response(204)

    receiver.answers["/cordon"] = respond_when_released
    background_redrive = BackgroundRedrive([item], broker, journal)
    receiver.wait_for_requests("/cordon")

    (second_result,) = redrive_dead_letters([item], broker, journal)
    was_in_progress = background_redrive.is_in_progress
    release.set()
    background_redrive.wait(10)
    (third_result,) = redrive_dead_letters([item], broker, journal)

    assert was_in_progress
    assert not background_redrive.is_in_progress
    assert [result.problem for result in (second_result, third_result)] == [
        "another redrive of this dead letter is in progress",
        "another redrive has delivered it already",
    ]
    assert [result.failed for result in (second_result, third_result, *background_redrive.results)] == [
        True,
        False,
        False,
    ]
    assert len(receiver.list_requests("/cordon")) == 1


def test_two_dead_letters_for_same_event_and_function_are_redriven_once(receiver: Receiver, journal: Journal) -> None:
    """X-6: two dead letters for the same event and function, for example from two brokers, are redriven once."""
    record_dead_letters(journal, "http://gone/cordon", "1")
    dead_letters = record_dead_letters(journal, "http://elsewhere/cordon", "1")
    assert len(dead_letters) == 2

    results = list(
        redrive_dead_letters(
            [RedriveItem(dead_letter, f"{receiver.url}/cordon") for dead_letter in dead_letters],
            f"{receiver.url}/broker",
            journal,
        )
    )

    assert [(result.failed, result.problem) for result in results] == [
        (False, ""),
        (False, "another redrive has delivered it already"),
    ]
    assert len(receiver.list_requests("/cordon")) == 1


@pytest.mark.parametrize(
    ("event_id", "source", "function"), [("2", "/s", "cordon"), ("1", "/t", "cordon"), ("1", "/s", "evict")]
)
def test_redrive_after_replacement_of_journal_delivers_nothing(
    receiver: Receiver, journal: Journal, tmp_path: Path, event_id: str, source: str, function: str
) -> None:
    """X-6: a dead letter is not delivered if the journal was replaced and has another dead letter with this number.

    The journal's file may be replaced while a user is reading the list of dead letters.
    """
    (dead_letter,) = record_dead_letters(journal, "http://gone/cordon", "1")
    for file in tmp_path.glob("journal.db*"):
        file.unlink()
    with closing(Journal(tmp_path / "journal.db")) as new_journal:
        (replacement,) = record_dead_letters(new_journal, f"http://gone/{function}", event_id, source=source)
    assert replacement.seq == dead_letter.seq

    (result,) = redrive_dead_letters(
        [RedriveItem(dead_letter, f"{receiver.url}/cordon")], f"{receiver.url}/broker", journal
    )

    assert result.failed
    assert "the journal no longer contains the dead letter: list the open dead letters" in result.problem
    assert receiver.requests == []


def test_only_one_of_two_processes_redrives_dead_letter(receiver: Receiver, postgresql: PostgreSQL) -> None:
    """X-6: only one of two processes that share a PostgreSQL journal delivers a dead letter."""
    url, broker, release = postgresql.create_database(), f"{receiver.url}/broker", threading.Event()

    def respond_when_released(_: ReceivedRequest) -> Response:
        release.wait(10)
        return Response(204)

    receiver.answers["/cordon"] = respond_when_released
    with closing(Journal(url)) as store:
        (dead_letter,) = record_dead_letters(store, "http://gone/cordon", "1")
        item = RedriveItem(dead_letter, f"{receiver.url}/cordon")
        command = [sys.executable, "-c", REDRIVE_PROGRAM, url, item.function_url, broker]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            receiver.wait_for_requests("/cordon")
            (second_result,) = redrive_dead_letters([item], broker, store)
            release.set()
            output, _ = process.communicate(timeout=10)
        (third_result,) = redrive_dead_letters([item], broker, store)

    assert output == "delivered\n"
    assert [second_result.problem, third_result.problem] == [
        "another redrive of this dead letter is in progress",
        "another redrive has delivered it already",
    ]
    assert len(receiver.list_requests("/cordon")) == 1
