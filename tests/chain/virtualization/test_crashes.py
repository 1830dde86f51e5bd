"""Test of migrations from several nodes while the product's processes are killed repeatedly (DRN-8, DRN-9)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from kube.nodes import node_path
from tests.chain.virtualization.environment import Stage
from tests.proofs import proves
from tests.workload import audit

pytestmark = pytest.mark.slow

SEED, SOURCES, EACH, KILLS = 1, 3, 4, 4
IN_ALL, PER_NODE = 5, 2
SECONDS = 120.0


@pytest.fixture
def whole(stage: Stage) -> Iterator[Stage]:
    """Yield the environment; restart the stopped processes of the product afterwards."""
    yield stage
    for server, start in (
        (stage.product.functions, stage.product.start_functions),
        (stage.product.delivery, stage.product.start_delivery),
    ):
        if not server.alive:
            start()


@proves("DRN-8", "DRN-9", "OSV-2", "X-2")
def test_machines_leave_three_nodes_amid_kills(whole: Stage) -> None:
    """VMs of three nodes migrate once each despite crashes, within the limits, and none is shut down."""
    stage = whole
    sources = [stage.node() for _ in range(SOURCES)]
    assert [stage.node() for _ in range(2)]
    homes = {
        stage.machine(f"vm-{number}", sources[number % SOURCES]): sources[number % SOURCES]
        for number in range(SOURCES * EACH)
    }
    before = stage.run(*homes)
    for node in sources:  # so that no VM migrates to a node that is drained next
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
    """Kill and restart the functions or the delivery until the drains are done; return the number of kills."""
    chance = Random(SEED)
    for kills in range(KILLS):
        if done.wait(chance.uniform(0.2, 1.5)):
            return kills
        stage.kill(chance)
    return KILLS
