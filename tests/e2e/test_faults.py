"""Tests of faults during the drains of ten nodes: every fault only delays the drains (X-2, X-3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import requests

from eventing.journal.store import Journal, Query
from localcluster.processes import await_ready
from tests.e2e.fault_proxy import Mischief
from tests.e2e.environment import PATIENCE, REPAIRED, Drains, Stage
from tests.machine_speed import is_below
from tests.receiver import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("whole_again")]
OUTAGE = 20.0
"""Seconds for which the source of maintenances is down; at least one tick comes in this time."""
REFUSAL = 10.0
GOING = 20
"""Terminating pods, of a hundred, at which the fault starts."""
CHAIN = ("begin", "cordon", "taint", "evict", "status")
"""The functions of the chain; each one handles the events of the one before it."""


@pytest.fixture(scope="module")
def between(stage: Stage) -> Iterator[Mischief]:
    """Yield a fault proxy between broker and functions; only the last tests use it, since routing takes time."""
    mischief = Mischief(stage.product)
    with closing(Receiver(otherwise=mischief)) as receiver:
        stage.product.route(lambda name: f"{receiver.url}/{name}")
        yield mischief
        stage.product.route(stage.product.function_url)


@pytest.fixture
def mischief(between: Mischief) -> Iterator[Mischief]:
    """Yield the fault proxy with reset counters; stop its faults afterwards."""
    between.forget()
    yield between
    between.behave()


def hold(drains: Drains, what: str, *, seconds: float = REPAIRED, log_is_whole: bool = True) -> None:
    """Assert that the drains succeed within `seconds` of the repair, and restore the nodes."""
    repaired = time.monotonic()
    drains.await_succeeded()
    took = time.monotonic() - repaired
    print(f"{what}: all Succeeded {took:.1f} s after the repair")
    drains.check(log_is_whole=log_is_whole)
    drains.end()
    assert is_below(took, seconds)


@pytest.mark.parametrize("function", ["cordon", "evict", "status"])
def test_a_function_is_killed(stage: Stage, function: str) -> None:
    """Killing a function's process during drains only delays them."""
    drains = stage.drains("2s", nodes=stage.fewer)
    drains.begin()
    if function != "cordon":
        drains.await_going(GOING)
    stage.histogram.note(function)
    stage.product.kill_functions(function)
    time.sleep(1)
    stage.product.start_functions(function)
    hold(drains, f"{function} killed")


@pytest.mark.parametrize("stage", ["knative"], indirect=True)
def test_the_data_plane_is_killed(stage: Stage) -> None:
    """Killing ingress, filter and channel with all accepted events during drains only delays them."""
    drains = stage.drains("2s", nodes=stage.fewer)
    drains.begin()
    drains.await_going(GOING)
    stage.product.kill_data("ingress", "filter", "dispatcher")
    time.sleep(1)
    stage.product.start_data("dispatcher", "ingress", "filter")
    hold(drains, "ingress, filter and channel killed")


def test_the_source_is_down_while_maintenances_come_and_go(stage: Stage) -> None:
    """Maintenances that are created and deleted while their source is down are drained and restored nevertheless."""
    half = len(stage.fewer) // 2
    ended = stage.drains("100ms", nodes=stage.fewer[:half])
    ended.begin()
    ended.await_succeeded()
    drains = stage.drains("1s", nodes=stage.fewer[half:])
    source = stage.product.adapters["maintenances"]

    source.kill()
    down = time.monotonic()
    for item in ended.maintenances:
        ended.request_end(item)
    drains.begin()
    time.sleep(OUTAGE - (time.monotonic() - down))
    source.start()

    repaired = time.monotonic()
    drains.await_succeeded()
    ended.await_gone()
    print(f"source down: all as it should be {time.monotonic() - repaired:.1f} s after the repair")
    drains.check()
    drains.end()


def test_the_api_server_is_restarted(stage: Stage) -> None:
    """Killing the API server during drains only delays them; it restarts at the same address."""
    drains = stage.drains("2s", nodes=stage.fewer)
    drains.begin()
    drains.await_going(GOING)
    server = next(server for server in stage.local.servers if server.name == "kube-apiserver")
    server.kill()
    time.sleep(1)
    server.start()
    hold(drains, "API server restarted", log_is_whole=False)


def test_a_poison_event_harms_nobody(stage: Stage) -> None:
    """Invalid events that no function can handle are recorded with their dead letters, and the drains continue."""
    drains = stage.drains("1s", nodes=stage.fewer)
    drains.begin()
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "poison",
        "ce-source": "https://example.com/test",
        "ce-type": "dev.nodemaintenance.node.tainted",
        "ce-more": "true",
        "content-type": "application/json",
    }
    with requests.Session() as session:
        session.trust_env = False
        answer = session.post(stage.product.broker_url, b'["not", "an object"]', headers=headers, timeout=10)
    assert answer.status_code == 202
    hold(drains, "poison event")
    with closing(Journal(stage.product.journal)) as book:
        kept = book.select(Query(ids=("poison",)))
    given_up = [entry.event.get_extension("knativeerrordest") for entry in kept]
    assert None in given_up
    assert stage.product.function_url("evict") in given_up


def test_the_journal_is_killed(stage: Stage, mischief: Mischief) -> None:
    """Killing `record` does not delay the drains, and after its restart every event is recorded."""
    drains = stage.drains("2s", nodes=stage.fewer)
    drains.begin()
    drains.await_going(GOING)
    stage.histogram.note("record")
    stage.product.kill_functions("record")
    drains.await_succeeded()
    stage.product.start_functions("record")

    repaired = time.monotonic()
    with closing(Journal(stage.product.journal)) as book:
        await_ready("the recording", lambda: not _unrecorded(mischief.heard("record"), book), [], PATIENCE)
    known = len(mischief.heard("record"))
    print(f"record killed: all {known} events recorded {time.monotonic() - repaired:.1f} s after the repair")
    assert known > len(CHAIN) * len(drains.nodes)
    drains.check()
    drains.end()


def _unrecorded(ids: set[str], book: Journal) -> set[str]:
    return ids - {str(entry.event.get_id()) for entry in book.select(Query(ids=tuple(ids)))}


def test_every_event_is_delivered_twice(stage: Stage, mischief: Mischief) -> None:
    """Calling each function twice concurrently for each event, also along the chain, only delays the drains.

    The duplicates continue until the end, at several times the load.
    """
    drains = stage.drains("2s", nodes=stage.fewer)
    mischief.way = mischief.twice
    drains.begin()
    hold(drains, "every event twice", seconds=2 * REPAIRED)
    print(", ".join(f"{name} {count} times" for name, count in mischief.calls.items()))
    assert min(mischief.calls[name] for name in CHAIN) >= 2 * len(drains.nodes)


def test_events_come_in_random_order(stage: Stage, mischief: Mischief) -> None:
    """Delaying each event by up to half a second, so that others overtake it, only delays the drains."""
    drains = stage.drains("2s", nodes=stage.fewer)
    mischief.way = mischief.late
    drains.begin()
    hold(drains, "random order")


def test_a_function_is_not_available_for_some_time(stage: Stage, mischief: Mischief) -> None:
    """Rejecting the events for `evict` with 503 for 10 s only delays the drains.

    The broker retries, and ticks replace the events that it gave up.
    """
    drains = stage.drains("1s", nodes=stage.fewer)
    mischief.way = mischief.without("evict")
    drains.begin()
    time.sleep(REFUSAL)
    mischief.behave()
    hold(drains, "503 for 10 s")
