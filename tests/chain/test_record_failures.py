"""Tests that a slow, killed or broken `record` delays no step and loses no event."""

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
from eventing.journal.tree import GRACE, missing
from localcluster.processes import await_ready
from tests.chain.separate_record import Apart
from tests.chain.environment import Scene
from tests.chain.test_crashes import wait_for_terminating
from tests.postgresql import PostgreSQL

pytestmark = pytest.mark.slow

PODS, DRAINS = 50, 3
PATIENCE = 60.0
"""Maximum seconds until all is recorded after the repair: the backoff of the Trigger's retries, and the next tick."""


@dataclass(frozen=True)
class Recorded:
    """An environment with a separate `record`, and functions that break and repair it or its database."""

    scene: Scene
    product: Apart
    kill: Callable[[], None]
    repair: Callable[[], None]


@pytest.fixture(scope="module")
def vacant(scene: Scene) -> Iterator[Scene]:
    """Yield the environment while its product is stopped."""
    scene.product.stop()
    yield scene
    scene.product.start()


@pytest.fixture(scope="module", params=["record", "postgresql"])
def recorded(
    request: pytest.FixtureRequest, vacant: Scene, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recorded]:
    """Yield a product with a separate `record` in place of the stopped one; `record` or its database can be killed."""
    folder = tmp_path_factory.mktemp("apart")
    if request.param == "record":
        yield from _with(vacant, folder, str(folder / "apart.db"), None)
    else:
        with PostgreSQL() as server:
            yield from _with(vacant, folder, server.database(), server)


def _with(scene: Scene, folder: Path, journal: str, server: PostgreSQL | None) -> Iterator[Recorded]:
    with Apart(scene.cluster, folder, journal) as product:
        there = Scene(scene.cluster, product)
        kill, repair = (server.kill, server.start) if server else (product.record.kill, product.start_record)
        yield Recorded(there, product, kill, repair)
        there.admin.close()
        product.kill()


def test_a_kill_during_a_drain_stops_nothing_and_loses_nothing(recorded: Recorded) -> None:
    """X-2, X-3: a drain completes while `record` is down, and its repair records every event and call."""
    scene, product = recorded.scene, recorded.product
    node = scene.node()
    pods = scene.pods(node, PODS, delete="1s")
    path = scene.maintain(node)
    uid = scene.admin.get(path)["metadata"]["uid"]
    wait_for_terminating(scene, pods, 10)

    recorded.kill()
    status = scene.reaches(path)["status"]
    recorded.repair()
    repaired = time.monotonic()

    assert status["drainProgress"] == 100
    with closing(Journal(product.journal_url)) as book:
        expected = product.accepted()
        await_ready("all events", lambda: not expected - _ids(book), [product.record], PATIENCE)
        await_ready("all runs", lambda: _without_run(book, uid) == [], [product.record], PATIENCE)
        print(f"all {len(expected)} events recorded {time.monotonic() - repaired:.1f} s after the repair")
    scene.delete(path)
    scene.gone(path)


def _ids(book: Journal) -> set[str]:
    return {entry.event.get_id() for entry in book.select()}


def _without_run(book: Journal, uid: str) -> list[str]:
    found = book.select(Query(maintenance=uid))
    return [entry.event.get_type() for entry in found if missing(entry, entry.arrived + GRACE)]


@pytest.fixture
def furnished(recorded: Recorded) -> Iterator[list[str]]:
    """Yield nodes with ten pods each; delete their maintenances afterwards."""
    scene = recorded.scene
    nodes = [scene.node() for _ in range(2 * DRAINS)]
    for node in nodes:
        scene.pods(node, 10)
    yield nodes
    scene.give_back(nodes)


@pytest.mark.alone
def test_a_drain_is_as_fast_when_nothing_can_be_recorded(recorded: Recorded, furnished: list[str]) -> None:
    """KNM-6: a drain of ten pods is as fast while `record` is suspended and accepts requests without responding.

    A step that waits for `record` would do so in every drain. The test therefore compares the fastest drains of each
    kind.
    """
    scene, record = recorded.scene, recorded.product.record
    with_it, without = [], []
    for node, other in zip(furnished[::2], furnished[1::2], strict=True):
        with_it.append(_drain(scene, node))
        record.signal(signal.SIGSTOP)
        without.append(_drain(scene, other))
        record.signal(signal.SIGCONT)

    print(f"10 pods drained in {min(with_it):.3f} s, and in {min(without):.3f} s with `record` stopped")
    assert min(without) < 1.5 * min(with_it)


def _drain(scene: Scene, node: str) -> float:
    """Return the seconds from the maintenance's creation to Succeeded."""
    started = time.monotonic()
    scene.reaches(scene.maintain(node))
    return time.monotonic() - started
