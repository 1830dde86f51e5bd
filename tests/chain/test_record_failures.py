"""Tests that no function is delayed and no event is lost if `record` or its database is slow or killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from eventing.journal.entries import Query
from eventing.journal.store import Journal
from eventing.journal.tree import RECORDING_GRACE_PERIOD, find_functions_without_attempt
from localcluster.processes import wait_until_ready
from tests.chain.environment import EventChainEnvironment
from tests.chain.separate_record import ProductWithSeparateRecord
from tests.chain.test_crashes import wait_for_terminating_pods
from tests.postgresql import PostgreSQL

pytestmark = pytest.mark.slow

POD_COUNT, DRAIN_COUNT = 50, 3
RECORD_TIMEOUT_SECONDS = 60.0
"""Maximum seconds from the restart until all events are recorded: the Trigger's retry backoff plus a tick interval."""


@dataclass(frozen=True)
class RecordEnvironment:
    """A test environment with a separate `record`, and callables that kill and restart `record` or its database."""

    environment: EventChainEnvironment
    product: ProductWithSeparateRecord
    kill: Callable[[], None]
    repair: Callable[[], None]


@pytest.fixture(scope="module")
def stopped_environment(environment: EventChainEnvironment) -> Iterator[EventChainEnvironment]:
    """Yield the environment while its product is stopped."""
    environment.product.stop()
    yield environment
    environment.product.start()


@pytest.fixture(scope="module", params=["record", "postgresql"])
def record_environment(
    request: pytest.FixtureRequest, stopped_environment: EventChainEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RecordEnvironment]:
    """Yield an environment whose product has a separate `record`; `record` or its database can be killed."""
    folder = tmp_path_factory.mktemp("separate-record")
    if request.param == "record":
        yield from _run_product_with_separate_record(stopped_environment, folder, str(folder / "record.db"), None)
    else:
        with PostgreSQL() as server:
            yield from _run_product_with_separate_record(stopped_environment, folder, server.create_database(), server)


def _run_product_with_separate_record(
    environment: EventChainEnvironment, folder: Path, journal: str, server: PostgreSQL | None
) -> Iterator[RecordEnvironment]:
    with ProductWithSeparateRecord(environment.cluster, folder, journal) as product:
        product_environment = EventChainEnvironment(environment.cluster, product)
        kill, repair = (server.kill, server.start) if server else (product.record.kill, product.start_record)
        yield RecordEnvironment(product_environment, product, kill, repair)
        product_environment.client.close()
        product.kill()


def test_no_event_is_lost_if_record_crashes(record_environment: RecordEnvironment) -> None:
    """X-2, X-3: a drain completes while `record` is down; all events and attempts are recorded after its restart."""
    environment, product = record_environment.environment, record_environment.product
    node = environment.create_node()
    pods = environment.create_pods(node, POD_COUNT, delete="1s")
    path = environment.create_maintenance(node)
    uid = environment.client.get(path)["metadata"]["uid"]
    wait_for_terminating_pods(environment, pods, 10)

    record_environment.kill()
    status = environment.wait_for_state(path)["status"]
    record_environment.repair()
    restarted_at = time.monotonic()

    assert status["drainProgress"] == 100
    with closing(Journal(product.journal_url)) as journal:
        accepted_ids = product.list_accepted_event_ids()
        wait_until_ready(
            "all events", lambda: not accepted_ids - _read_event_ids(journal), [product.record], RECORD_TIMEOUT_SECONDS
        )
        wait_until_ready(
            "all attempts",
            lambda: _list_events_without_attempt(journal, uid) == [],
            [product.record],
            RECORD_TIMEOUT_SECONDS,
        )
        print(f"all {len(accepted_ids)} events recorded {time.monotonic() - restarted_at:.1f} s after the restart")
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def _read_event_ids(journal: Journal) -> set[str]:
    return {entry.event.get_id() for entry in journal.select()}


def _list_events_without_attempt(journal: Journal, uid: str) -> list[str]:
    entries = journal.select(Query(maintenance=uid))
    return [
        entry.event.get_type()
        for entry in entries
        if find_functions_without_attempt(entry, entry.arrived + RECORDING_GRACE_PERIOD)
    ]


@pytest.fixture
def nodes_with_ten_pods(record_environment: RecordEnvironment) -> Iterator[list[str]]:
    """Yield nodes with ten pods each, and delete their maintenances afterwards."""
    environment = record_environment.environment
    nodes = [environment.create_node() for _ in range(2 * DRAIN_COUNT)]
    for node in nodes:
        environment.create_pods(node, 10)
    yield nodes
    environment.delete_maintenances_of(nodes)


@pytest.mark.alone
def test_suspended_record_does_not_slow_drain(
    record_environment: RecordEnvironment, nodes_with_ten_pods: list[str]
) -> None:
    """KNM-6: a suspended `record`, which accepts requests but never responds, does not slow the drain of ten pods.

    A function that waits for `record` would delay every drain. The test therefore compares the fastest drain with a
    running `record` and the fastest drain with a suspended one.
    """
    environment, record = record_environment.environment, record_environment.product.record
    seconds_with_record, seconds_without_record = [], []
    for node, other_node in zip(nodes_with_ten_pods[::2], nodes_with_ten_pods[1::2], strict=True):
        seconds_with_record.append(_measure_drain_seconds(environment, node))
        record.send_signal(signal.SIGSTOP)
        seconds_without_record.append(_measure_drain_seconds(environment, other_node))
        record.send_signal(signal.SIGCONT)

    print(
        f"10 pods drained in {min(seconds_with_record):.3f} s, "
        f"and in {min(seconds_without_record):.3f} s with `record` suspended"
    )
    assert min(seconds_without_record) < 1.5 * min(seconds_with_record)


def _measure_drain_seconds(environment: EventChainEnvironment, node: str) -> float:
    """Return the seconds from the creation of a maintenance until it has succeeded."""
    started = time.monotonic()
    environment.wait_for_state(environment.create_maintenance(node))
    return time.monotonic() - started
