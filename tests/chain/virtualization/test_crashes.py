"""Test for migrations from several nodes while the product's processes are killed repeatedly (DRN-8, DRN-9)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from kube.nodes import build_node_path
from localcluster.audit_log import AuditLog
from tests.chain.virtualization.environment import VirtualizationEnvironment
from tests.proofs import proves

pytestmark = pytest.mark.slow

SEED, SOURCE_NODES, VMS_PER_NODE, MAX_KILLS = 1, 3, 4, 4
MAX_MIGRATIONS, MAX_MIGRATIONS_PER_NODE = 5, 2
DRAIN_TIMEOUT_SECONDS = 120.0


@pytest.fixture
def restarting_environment(environment: VirtualizationEnvironment) -> Iterator[VirtualizationEnvironment]:
    """Yield the environment, and restart the product's stopped processes afterwards."""
    yield environment
    for server, start in (
        (environment.product.functions, environment.product.start_functions),
        (environment.product.delivery, environment.product.start_delivery),
    ):
        if not server.is_alive:
            start()


@proves("DRN-8", "DRN-9", "OSV-2", "X-2")
def test_vms_migrate_despite_crashes(restarting_environment: VirtualizationEnvironment) -> None:
    """Check that despite crashes, each VM on three nodes migrates once, within the limits and without a shutdown."""
    environment = restarting_environment
    source_nodes = [environment.create_node() for _ in range(SOURCE_NODES)]
    assert [environment.create_node() for _ in range(2)]
    node_by_vm = {
        environment.create_vm(f"vm-{number}", source_nodes[number % SOURCE_NODES]): source_nodes[number % SOURCE_NODES]
        for number in range(SOURCE_NODES * VMS_PER_NODE)
    }
    original_boots = environment.wait_until_running(*node_by_vm)
    for node in source_nodes:  # VMs cannot migrate to cordoned nodes, so none of them migrates to another source node.
        environment.client.patch(build_node_path(node), {"spec": {"unschedulable": True}})
    evictions, finished = AuditLog(environment.cluster.audit_log), threading.Event()
    with environment.create_watcher(node_by_vm) as watcher, ThreadPoolExecutor(1) as thread:
        killer = thread.submit(kill_repeatedly, environment, finished)
        try:
            paths = [environment.create_maintenance(node) for node in source_nodes]
            for path in paths:
                environment.wait_for_state(path, timeout=DRAIN_TIMEOUT_SECONDS)
        finally:
            finished.set()

    assert killer.result() > 0
    assert environment.wait_until_running(*node_by_vm) == original_boots
    assert environment.count_migrations_by_vmi() == dict.fromkeys(node_by_vm, 1)
    assert watcher.vmis_with_two_migrations == set()
    assert watcher.max_concurrent <= MAX_MIGRATIONS
    assert max(watcher.max_concurrent_by_node.values()) <= MAX_MIGRATIONS_PER_NODE
    assert environment.list_shut_down_vms(evictions) == set()


def kill_repeatedly(environment: VirtualizationEnvironment, finished: threading.Event) -> int:
    """Repeatedly kill and restart the functions or the delivery until the drains finish; return the number of kills."""
    rng = Random(SEED)
    for kill_count in range(MAX_KILLS):
        if finished.wait(rng.uniform(0.2, 1.5)):
            return kill_count
        environment.kill_and_restart_random_process(rng)
    return MAX_KILLS
