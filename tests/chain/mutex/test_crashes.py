"""Test for an upgrade run during crashes: nodes are released one by one, no Job runs twice, pools are restored."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from chaos.release_watcher import ReleaseWatcher
from localcluster.simulators.openshift import FakeMco
from localcluster.simulators.upgrade_objects import NEW_VERSION
from tests.chain.mutex.environment import MutexEnvironment, get_node_and_rule
from tests.proofs import proves

pytestmark = pytest.mark.slow

SEED, NODE_COUNT, MAX_KILLS, MAX_KILL_INTERVAL_SECONDS = 1, 12, 6, 4.0
RUN_TIMEOUT_SECONDS = 240.0


@proves("MUT-42", "MUT-44", "MUT-49", "X-2")
def test_run_finishes_despite_crashes(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a run finishes although functions and delivery are repeatedly killed; ticks replace lost events.

    `make chaos COMPONENT=mutex` runs the same scenario with twenty nodes and a configurable number of kills.
    """
    names, run = environment.create_run_with_two_rules(NODE_COUNT)
    before = environment.get_pool_selectors()
    finished = threading.Event()
    with ReleaseWatcher(environment.client) as watcher, ThreadPoolExecutor(1) as thread:
        environment.cvo.set_desired_version(NEW_VERSION)
        killer = thread.submit(kill_repeatedly, environment, finished)
        try:
            environment.wait_for_step(run, "Finished", RUN_TIMEOUT_SECONDS)
        finally:
            finished.set()

    assert killer.result() == MAX_KILLS
    assert watcher.concurrently_released_nodes == []
    assert sorted(watcher.released) == sorted(names)
    jobs = [
        (*get_node_and_rule(job), job["metadata"]["name"].startswith("cleanup-")) for job in environment.list_jobs()
    ]
    assert set(Counter(jobs).values()) == {1}
    assert len(jobs) == NODE_COUNT * 3
    assert environment.get_pool_selectors() == before
    assert environment.list_labelled_nodes() == set()


def kill_repeatedly(environment: MutexEnvironment, finished: threading.Event) -> int:
    """Repeatedly kill and restart the functions or the delivery until the run finishes; return the number of kills."""
    rng = Random(SEED)
    for kill_count in range(MAX_KILLS):
        if finished.wait(rng.uniform(0.5, MAX_KILL_INTERVAL_SECONDS)):
            return kill_count
        if rng.random() < 0.5:
            environment.product.kill_functions()
            environment.product.start_functions()
        else:
            environment.product.kill_delivery()
            environment.product.start_delivery()
    return MAX_KILLS
