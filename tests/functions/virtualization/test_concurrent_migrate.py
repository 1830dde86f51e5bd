"""Tests that concurrent or killed processes of `migrate` migrate no VMI twice and exceed no limit."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.failures import Retry
from functions.virtualization.migrate import migrate
from kube.client.api import Api
from kube.client.sync_client import SyncClient
from kube.paths import LEASES_PATH, Object
from kube.virtualization.migration_claims import LEASE_PATH, build_lease
from kube.virtualization.vmis import MIGRATION_KIND, VMI_KIND, is_finished
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.chain.virtualization.migration_watcher import MigrationWatcher
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_resource_event, build_tick
from tests.functions.request_hooks import run_before_request
from tests.functions.virtualization.conftest import VmiScenario
from tests.kubevirt import (
    MIGRATABLE,
    NOT_MIGRATABLE,
    build_vmi,
    get_instances_path,
    get_migrations_path,
    patch_vmi_status,
)
from tests.proofs import proves
from tests.sources import ROOT

pytestmark = pytest.mark.slow

RANDOM_SEED, PROCESS_COUNT, TIMEOUT_SECONDS = 1, 6, 60.0
MAX_DELAY_SECONDS, RANDOM_CONDITION_CHANGES = 0.03, 300
"""Maximum delay of an API request, and number of random condition changes before all VMIs are migratable."""
MIN_REQUESTS = 8
"""Minimum number of requests in a pass that creates two migrations.

The pass sends four list requests, reads the node and the Lease, writes the Lease, and creates the two migrations.
"""


@proves("DRN-8", "X-2")
def test_kill_before_any_request_causes_no_duplicate_migration(
    vmi_scenario: VmiScenario, functions: Functions, idle_cluster: LocalCluster
) -> None:
    """Check that no duplicate migration is created if a process is killed before any of its API requests.

    The redelivered event creates only the missing migrations.
    """
    for number in range(4):
        vmi_scenario.create_vmi(build_vmi(f"vm-{number}", vmi_scenario.node))
    kubeconfig = str(idle_cluster.ensure_kubeconfig(access.make_username("migrate")))
    for request_count in itertools.count():
        event = build_tick()
        command = [sys.executable, "-m", "tests.functions.virtualization.killed_migrate", kubeconfig, event.get_id()]
        result = subprocess.run([*command, str(request_count)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode in (0, -signal.SIGKILL), result.stderr
        assert set(vmi_scenario.map_migrations_to_vmis().values()) <= {"vm-0", "vm-1"}
        functions.invoke("migrate", event)
        assert sorted(vmi_scenario.map_migrations_to_vmis().values()) == ["vm-0", "vm-1"]
        if result.returncode == 0:
            break
        vmi_scenario.delete_migrations()
    assert request_count >= MIN_REQUESTS


@proves("DRN-8", "X-2")
@pytest.mark.parametrize("moment", ["before first claim", "before later claim", "after claim"])
def test_only_first_claiming_process_creates_migrations(
    vmi_scenario: VmiScenario, functions: Functions, idle_cluster: LocalCluster, moment: str
) -> None:
    """Check that only the process that claims the migration slots first creates migrations.

    The two processes read different migratable VMIs: between the read and the write of one process, other VMIs become
    migratable and the other process runs a pass.
    """
    vmis = [
        vmi_scenario.create_vmi(
            build_vmi(f"vm-{number}", vmi_scenario.node, migratable=build_migratable_condition(number < 2))
        )
        for number in range(4)
    ]
    second_client = SyncClient(str(idle_cluster.ensure_kubeconfig(access.make_username("migrate"))))
    if moment == "before later claim":
        vmi_scenario.administrator_client.create(LEASES_PATH, build_lease({}))

    def change_vmis_and_migrate() -> None:
        for number, vmi in enumerate(vmis):
            patch_vmi_status(
                vmi_scenario.administrator_client, vmi, conditions=[build_migratable_condition(number >= 2)]
            )
        migrate(build_tick(), second_client)

    delayed_requests = {
        "before first claim": ("POST", LEASES_PATH),
        "before later claim": ("PATCH", LEASE_PATH),
        "after claim": ("POST", get_migrations_path(vmi_scenario.workload.namespace)),
    }
    first_creates = moment == "after claim"
    with run_before_request(functions.clusters["migrate"], *delayed_requests[moment], change_vmis_and_migrate):
        assert functions.post("migrate", build_tick()).status_code == (204 if first_creates else 503)
    second_client.close()
    assert sorted(vmi_scenario.map_migrations_to_vmis().values()) == (
        ["vm-0", "vm-1"] if first_creates else ["vm-2", "vm-3"]
    )


def build_migratable_condition(is_migratable: bool) -> Object:
    """Return the condition that states whether a VMI is migratable."""
    return MIGRATABLE if is_migratable else NOT_MIGRATABLE


@proves("DRN-8", "X-2")
@pytest.mark.parametrize(
    ("source_node_count", "vmis_per_node", "max_concurrent"),
    [(1, 6, 2), (4, 2, 5)],
    ids=["limit per node", "limit per cluster"],
)
def test_concurrent_processes_exceed_no_migration_limit(
    vmi_scenario: VmiScenario,
    idle_cluster: LocalCluster,
    source_node_count: int,
    vmis_per_node: int,
    max_concurrent: int,
) -> None:
    """Check that concurrent processes with repeated and unordered events migrate each VMI once and exceed no limit.

    The test watches the migrations and counts those that are in progress at the same time.
    """
    nodes = [vmi_scenario.node, *(vmi_scenario.add_drained_node() for _ in range(source_node_count - 1))]
    names = [f"vm-{number}" for number in range(source_node_count * vmis_per_node)]
    for number, name in enumerate(names):
        vmi_scenario.create_vmi(build_vmi(name, nodes[number % source_node_count]))
    stop_requested, kubeconfig = threading.Event(), str(idle_cluster.ensure_kubeconfig(access.make_username("migrate")))
    with (
        MigrationWatcher(vmi_scenario.administrator_client) as watcher,
        finish_migrations_in_background(vmi_scenario, stop_requested),
        ThreadPoolExecutor(PROCESS_COUNT) as executor,
    ):
        futures = [
            executor.submit(
                run_migrate_until_stopped, kubeconfig, build_hints(vmi_scenario, names), seed, stop_requested
            )
            for seed in range(PROCESS_COUNT)
        ]
        try:
            vmi_scenario.wait_until_vmis_left_nodes(nodes, TIMEOUT_SECONDS)
        finally:
            stop_requested.set()
        conflict_count = sum(future.result() for future in futures)

    assert sorted(vmi_scenario.map_migrations_to_vmis().values()) == sorted(names)
    assert watcher.vmis_with_two_migrations == set()
    assert 0 < watcher.max_concurrent <= max_concurrent
    assert conflict_count > 0, (
        "no two processes claimed migration slots at the same time, so the limits were not tested"
    )


def build_hints(vmi_scenario: VmiScenario, vmi_names: list[str]) -> list[BaseCloudEvent]:
    """Build a hint of each type about each VMI and migration, and a tick."""
    hints: list[BaseCloudEvent] = [build_tick()]
    for name, event_type, object_kind in itertools.product(
        vmi_names, (events.REFERENCE_UPDATED, events.REFERENCE_DELETED), HINT_KINDS
    ):
        metadata = {"name": name, "namespace": vmi_scenario.workload.namespace}
        hints.append(
            build_resource_event(event_type, {"apiVersion": "kubevirt.io/v1", "metadata": metadata}, object_kind)
        )
    return hints


HINT_KINDS = (VMI_KIND, MIGRATION_KIND)


class DelayedApi(Api):
    """An API client that delays each request, so that its data is outdated when it sends a write."""

    random = Random(RANDOM_SEED)

    async def request(self, method: str, path: str, **options: Any) -> Object:
        await asyncio.sleep(DelayedApi.random.uniform(0, MAX_DELAY_SECONDS))
        return await super().request(method, path, **options)


def run_migrate_until_stopped(
    kubeconfig: str, hints: list[BaseCloudEvent], seed: int, stop_requested: threading.Event
) -> int:
    """Run `migrate` with random hints and its own API client until stopped, and return the number of conflicts."""
    random, conflict_count = Random(RANDOM_SEED + seed), 0
    client = SyncClient(kubeconfig)
    client.api = client.run(DelayedApi.connect(kubeconfig))
    while not stop_requested.is_set():
        try:
            migrate(random.choice(hints), client)
        except Retry:
            conflict_count += 1
    client.close()
    return conflict_count


@contextmanager
def finish_migrations_in_background(vmi_scenario: VmiScenario, stop_requested: threading.Event) -> Iterator[None]:
    """Finish each migration, with its VMI on another node, in a thread during the `with` block."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(finish_migrations, vmi_scenario, stop_requested)
        yield
        stop_requested.set()
        future.result()


def finish_migrations(vmi_scenario: VmiScenario, stop_requested: threading.Event) -> None:
    """Move each migrating VMI and then end its migration, in the same order as KubeVirt.

    At first, random VMIs are migratable, so that the processes choose different VMIs to migrate next.
    """
    migrations_path, random, rounds = (
        get_migrations_path(vmi_scenario.workload.namespace),
        Random(RANDOM_SEED),
        itertools.count(),
    )
    while not stop_requested.wait(0.02):
        for vmi in vmi_scenario.administrator_client.list(get_instances_path(vmi_scenario.workload.namespace))["items"]:
            migratable = next(rounds) > RANDOM_CONDITION_CHANGES or random.random() < 0.5
            patch_vmi_status(
                vmi_scenario.administrator_client, vmi, conditions=[build_migratable_condition(migratable)]
            )
        for migration in vmi_scenario.administrator_client.list(migrations_path)["items"]:
            if is_finished(migration):
                continue
            status_path = f"{migrations_path}/{migration['metadata']['name']}/status"
            vmi = {"metadata": {"namespace": vmi_scenario.workload.namespace, "name": migration["spec"]["vmiName"]}}
            source = vmi_scenario.get_node_name(migration["spec"]["vmiName"])
            vmi_scenario.administrator_client.patch(
                status_path, {"status": {"phase": "Running", "migrationState": {"sourceNode": source}}}
            )
            patch_vmi_status(vmi_scenario.administrator_client, vmi, nodeName="elsewhere")
            vmi_scenario.administrator_client.patch(status_path, {"status": {"phase": "Succeeded"}})
