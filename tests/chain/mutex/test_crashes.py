"""Test of a run during crashes: one released node at a time, no Job twice, and everything restored (MUT-44)."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from tests.chain.mutex.environment import NEW, Stage, told
from tests.chain.mutex.release_watcher import Watcher
from tests.openshift import FakeMco
from tests.proofs import proves

pytestmark = pytest.mark.slow

SEED, NODES, KILLS, PAUSE = 1, 12, 6, 4.0
SECONDS = 240.0


@proves("MUT-42", "MUT-44", "MUT-49", "X-2")
def test_a_run_over_twelve_nodes_amid_kills(stage: Stage, mco: FakeMco) -> None:
    """Runs finish although the functions and the delivery are killed repeatedly; ticks replace lost events.

    `make chaos WING=mutex` does this with twenty nodes and a configurable number of kills.
    """
    names, run = stage.with_two_rules(NODES)
    before = stage.selectors()
    done = threading.Event()
    with Watcher(stage.admin) as watcher, ThreadPoolExecutor(1) as thread:
        stage.cvo.want(NEW)
        killing = thread.submit(kill, stage, done)
        try:
            stage.reaches(run, "Finished", SECONDS)
        finally:
            done.set()

    assert killing.result() == KILLS
    assert watcher.together == []
    assert sorted(watcher.released) == sorted(names)
    jobs = [(*told(job), job["metadata"]["name"].startswith("cleanup-")) for job in stage.created()]
    assert set(Counter(jobs).values()) == {1}
    assert len(jobs) == NODES * 3
    assert stage.selectors() == before
    assert stage.labelled() == set()


def kill(stage: Stage, done: threading.Event) -> int:
    """Kill the functions or the delivery and restart them, until the run is done; return the number of kills."""
    chance = Random(SEED)
    for kills in range(KILLS):
        if done.wait(chance.uniform(0.5, PAUSE)):
            return kills
        if chance.random() < 0.5:
            stage.product.kill_functions()
            stage.product.start_functions()
        else:
            stage.product.kill_delivery()
            stage.product.start_delivery()
    return KILLS
