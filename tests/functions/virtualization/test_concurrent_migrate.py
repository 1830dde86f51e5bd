"""Tests of `migrate` in many concurrent or killed processes: no VMI migrates twice, and no limit is exceeded."""

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
from kube.client.sync_client import Cluster
from kube.paths import LEASES, Object
from kube.virtualization.vmis import INSTANCE, MIGRATION, is_finished
from kube.virtualization.migration_claims import CLAIM_PATH, lease_of
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.chain.virtualization.migration_watcher import Watcher
from tests.functions.conftest import Functions
from tests.functions.event_builders import resource, tick
from tests.functions.request_hooks import before
from tests.functions.virtualization.conftest import Machines
from tests.kubevirt import ABLE, UNABLE, edit, instances, migrations, vmi
from tests.proofs import proves
from tests.sources import ROOT

pytestmark = pytest.mark.slow

SEED, PROCESSES, SECONDS = 1, 6, 60.0
SLOWEST, ROUNDS = 0.03, 300
"""Maximum delay of a request in seconds, and random condition changes before all VMIs are migratable."""
FEWEST_REQUESTS = 8
"""Minimum requests of a pass that creates two migrations.

There are four lists, the reads of the node and the Lease, a write of the Lease, and the two creations.
"""


@proves("DRN-8", "X-2")
def test_killed_before_any_of_its_requests_it_makes_none_twice(
    machines: Machines, functions: Functions, quiet: LocalCluster
) -> None:
    """Check that a process killed before any one of its requests causes no duplicate migration.

    The redelivered event completes what was begun and creates nothing else.
    """
    for number in range(4):
        machines.create(vmi(f"vm-{number}", machines.node))
    kubeconfig = str(quiet.kubeconfig_for(access.service_account("migrate")))
    for requests in itertools.count():
        event = tick()
        command = [sys.executable, "-m", "tests.functions.virtualization.killed_migrate", kubeconfig, event.get_id()]
        ended = subprocess.run([*command, str(requests)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        assert set(machines.migrations().values()) <= {"vm-0", "vm-1"}
        functions.answer("migrate", event)
        assert sorted(machines.migrations().values()) == ["vm-0", "vm-1"]
        if ended.returncode == 0:
            break
        machines.forget_migrations()
    assert requests >= FEWEST_REQUESTS


@proves("DRN-8", "X-2")
@pytest.mark.parametrize("moment", ["the first claim", "a later claim", "behind its claim"])
def test_who_sees_other_machines_as_the_next_exceeds_no_bound(
    machines: Machines, functions: Functions, quiet: LocalCluster, moment: str
) -> None:
    """Check that of two processes that see different migratable VMIs, only the first to claim creates migrations.

    Between the read and the write of one process, the other VMIs become migratable and another process makes a pass.
    """
    made = [machines.create(vmi(f"vm-{number}", machines.node, able=able(number < 2))) for number in range(4)]
    other = Cluster(str(quiet.kubeconfig_for(access.service_account("migrate"))))
    if moment == "a later claim":
        machines.admin.create(LEASES, lease_of({}))

    def meanwhile() -> None:
        for number, item in enumerate(made):
            edit(machines.admin, item, conditions=[able(number >= 2)])
        migrate(tick(), other)

    held_up = {
        "the first claim": ("POST", LEASES),
        "a later claim": ("PATCH", CLAIM_PATH),
        "behind its claim": ("POST", migrations(machines.work.namespace)),
    }
    first = moment == "behind its claim"
    with before(functions.clusters["migrate"], *held_up[moment], meanwhile):
        assert functions.post("migrate", tick()).status_code == (204 if first else 503)
    other.close()
    assert sorted(machines.migrations().values()) == (["vm-0", "vm-1"] if first else ["vm-2", "vm-3"])


def able(is_so: bool) -> Object:
    """Return the condition that states whether a VMI is migratable."""
    return ABLE if is_so else UNABLE


@proves("DRN-8", "X-2")
@pytest.mark.parametrize(("sources", "each", "most"), [(1, 6, 2), (4, 2, 5)], ids=["of a node", "of the cluster"])
def test_many_processes_with_events_twice_and_shuffled_keep_the_bounds(
    machines: Machines, quiet: LocalCluster, sources: int, each: int, most: int
) -> None:
    """Check that concurrent processes with repeated, unordered events migrate each VMI once and exceed no limit.

    A watch counts the migrations in progress at any moment.
    """
    nodes = [machines.node, *(machines.drained() for _ in range(sources - 1))]
    names = [f"vm-{number}" for number in range(sources * each)]
    for number, name in enumerate(names):
        machines.create(vmi(name, nodes[number % sources]))
    done, kubeconfig = threading.Event(), str(quiet.kubeconfig_for(access.service_account("migrate")))
    with Watcher(machines.admin) as watcher, playing(machines, done), ThreadPoolExecutor(PROCESSES) as threads:
        looks = [threads.submit(process, kubeconfig, hints(machines, names), seed, done) for seed in range(PROCESSES)]
        try:
            machines.await_elsewhere(nodes, SECONDS)
        finally:
            done.set()
        refused = sum(look.result() for look in looks)

    assert sorted(machines.migrations().values()) == sorted(names)
    assert watcher.doubled == set()
    assert 0 < watcher.most <= most
    assert refused > 0, "no two ever claimed at once: this proves nothing"


def hints(machines: Machines, names: list[str]) -> list[BaseCloudEvent]:
    """Build a hint of each type about each VMI and migration, and a tick."""
    found: list[BaseCloudEvent] = [tick()]
    for name, kind, of in itertools.product(names, (events.REFERENCE_UPDATED, events.REFERENCE_DELETED), KINDS):
        metadata = {"name": name, "namespace": machines.work.namespace}
        found.append(resource(kind, {"apiVersion": "kubevirt.io/v1", "metadata": metadata}, of))
    return found


KINDS = (INSTANCE, MIGRATION)


class Slow(Api):
    """An API client that delays each request, so that its reads are outdated when it writes."""

    chance = Random(SEED)

    async def request(self, method: str, path: str, **options: Any) -> Object:
        await asyncio.sleep(Slow.chance.uniform(0, SLOWEST))
        return await super().request(method, path, **options)


def process(kubeconfig: str, known: list[BaseCloudEvent], seed: int, done: threading.Event) -> int:
    """Run `migrate` with random hints until `done` is set, with its own API client; return the number of rejections."""
    chance, refused = Random(SEED + seed), 0
    cluster = Cluster(kubeconfig)
    cluster.api = cluster.run(Slow.connect(kubeconfig))
    while not done.is_set():
        try:
            migrate(chance.choice(known), cluster)
        except Retry:
            refused += 1
    cluster.close()
    return refused


@contextmanager
def playing(machines: Machines, done: threading.Event) -> Iterator[None]:
    """Finish each migration within the block, with its VMI on another node."""
    with ThreadPoolExecutor(1) as thread:
        played = thread.submit(play, machines, done)
        yield
        done.set()
        played.result()


def play(machines: Machines, done: threading.Event) -> None:
    """Move each migrating VMI, and then end its migration, as KubeVirt does in this order.

    For the first rounds, VMIs are migratable at random, so that processes see different ones as the next.
    """
    where, chance, rounds = migrations(machines.work.namespace), Random(SEED), itertools.count()
    while not done.wait(0.02):
        for item in machines.admin.list(instances(machines.work.namespace))["items"]:
            migratable = next(rounds) > ROUNDS or chance.random() < 0.5
            edit(machines.admin, item, conditions=[able(migratable)])
        for item in machines.admin.list(where)["items"]:
            if is_finished(item):
                continue
            path = f"{where}/{item['metadata']['name']}/status"
            moved = {"metadata": {"namespace": machines.work.namespace, "name": item["spec"]["vmiName"]}}
            source = machines.node_of(item["spec"]["vmiName"])
            machines.admin.patch(path, {"status": {"phase": "Running", "migrationState": {"sourceNode": source}}})
            edit(machines.admin, moved, nodeName="elsewhere")
            machines.admin.patch(path, {"status": {"phase": "Succeeded"}})
