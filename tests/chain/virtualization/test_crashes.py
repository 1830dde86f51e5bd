"""Machines that leave several nodes while what moves them dies again and again (DRN-8, DRN-9)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from kube.nodes import node_path
from tests.chain.virtualization.stage import Stage
from tests.proofs import proves
from tests.workload import audit

pytestmark = pytest.mark.slow

SEED, SOURCES, EACH, KILLS = 1, 3, 4, 4
IN_ALL, PER_NODE = 5, 2
SECONDS = 120.0


@pytest.fixture
def whole(stage: Stage) -> Iterator[Stage]:
    """Leave the product running, whatever a test did to it."""
    yield stage
    for server, start in (
        (stage.product.functions, stage.product.start_functions),
        (stage.product.delivery, stage.product.start_delivery),
    ):
        if not server.alive:
            start()


@proves("DRN-8", "DRN-9", "OSV-2", "X-2")
def test_machines_leave_three_nodes_amid_kills(whole: Stage) -> None:
    """Functions or delivery end by SIGKILL: each machine moves once and unbroken, no bound is exceeded, and no launcher
    is evicted."""
    stage = whole
    sources = [stage.node() for _ in range(SOURCES)]
    assert [stage.node() for _ in range(2)]
    homes = {
        stage.machine(f"vm-{number}", sources[number % SOURCES]): sources[number % SOURCES]
        for number in range(SOURCES * EACH)
    }
    before = stage.run(*homes)
    for node in sources:  # so that no machine moves to one that is drained a moment later
        stage.admin.patch(node_path(node), {"spec": {"unschedulable": True}})
    evictions, done = audit(stage.cluster), threading.Event()
    with stage.watcher(homes) as watcher, ThreadPoolExecutor(1) as thread:
        killing = thread.submit(kill, stage, done)
        try:
            paths = [stage.maintain(node) for node in sources]
            for path in paths:
                stage.reaches(path, seconds=SECONDS)
        finally:
            done.set()

    assert killing.result() > 0
    assert stage.run(*homes) == before
    assert stage.migrations() == dict.fromkeys(homes, 1)
    assert watcher.doubled == set()
    assert watcher.most <= IN_ALL
    assert max(watcher.most_from.values()) <= PER_NODE
    assert stage.shut_down(evictions) == set()


def kill(stage: Stage, done: threading.Event) -> int:
    """Kill the one or the other, and start it again, until all is done; how often it was done."""
    chance = Random(SEED)
    for kills in range(KILLS):
        if done.wait(chance.uniform(0.2, 1.5)):
            return kills
        stage.kill(chance)
    return KILLS
