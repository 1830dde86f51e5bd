"""Tests of VM migrations and of CPU labels on a thousand nodes, on each real engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from eventing.replay.function_client import post
from kube.cpu.node_patch import MARK
from kube.nodes import node_path
from localcluster.processes import await_ready
from localcluster.product import Product
from tests.chain.cpu_labels import environment as labels
from tests.chain.cpu_labels.environment import HASWELL, HASWELLS, NAMES, PENRYNS, assert_each_once, patched, seconds, unheard
from tests.chain.virtualization import environment as machines
from tests.chain.virtualization.environment import blocked, is_running, node_of
from tests.chain.virtualization.migration_watcher import Watcher
from tests.e2e.environment import NODES, PATIENCE, WITH_WINGS, Stage
from tests.e2e.ticks import tick
from tests.fake_virt import FakeVirt
from tests.machine_speed import is_below
from tests.proofs import proves
from tests.workload import audit

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("stage", WITH_WINGS, indirect=True)]
WHY = "the disk is not shared"
PER_NODE = 2
"""The shipped limit of concurrent migrations from one node."""
LIMIT = 20.0
"""Maximum seconds for a round over all nodes."""
FUNCTION_LIMIT = "2.0"
"""Maximum seconds that a function may take for one event, as a bucket of its histogram."""
QUIET = 1.0
"""A round is over after this many seconds without a request of `label-cpu`."""
FEW = 30
"""Maximum number of nodes whose patch response was lost, as happens on a busy machine."""
LABELLER = b"system:serviceaccount:node-maintenance:label-cpu"


@pytest.fixture
def moving(stage: Stage) -> Iterator[machines.Stage]:
    """Yield the virtualization environment on the engine's cluster, with a simulation of KubeVirt."""
    # Both kinds of products have the attributes that the environment uses.
    seen = machines.Stage(stage.local, cast("Product", stage.product))
    with closing(seen.admin), FakeVirt(seen.admin):
        yield seen
        seen.clear()


@proves("DRN-7", "DRN-8", "DRN-9", "DRN-11", "OSV-2", "OSV-3", "OSV-6", "X-2")
def test_machines_of_each_kind_leave_their_node_amid_kills(stage: Stage, moving: machines.Stage) -> None:
    """Drains migrate, restart or wait for VMs as usual although `migrate`, the broker and all sources are killed.

    `migrate` is killed at the first migration, broker and sources after two VMs have left.
    """
    node = moving.node()
    movable = [moving.machine(f"live-{number}", node) for number in range(6)]
    stuck = [moving.machine(f"stuck-{number}", node, why=WHY) for number in range(2)]
    restarted = [moving.machine(f"plain-{number}", node, evict="") for number in range(2)]
    before = moving.run(*movable, *stuck, *restarted)
    evictions = audit(stage.local)
    with Watcher(moving.admin) as watcher:
        path = moving.maintain(node)
        await_ready("the first migration", lambda: bool(watcher.seen), stage.product.servers, PATIENCE)
        stage.product.kill_functions("migrate")
        stage.product.start_functions("migrate")
        moving.await_instances(
            lambda known: sum(node_of(known[name]) not in ("", node) for name in movable) >= 2, PATIENCE
        )
        stage.product.kill_delivery()
        stage.product.start_delivery()
        held = moving.reaches(path, lambda item: is_stuck(item, len(stuck)), PATIENCE)
        assert all(WHY in message for _, message in blocked(held).values())
        for name in stuck:
            moving.able(name)
        moving.reaches(path, seconds=PATIENCE)

    kept = [*movable, *stuck]
    assert moving.run(*kept) == {name: before[name] for name in kept}
    assert all(is_running(each) for each in moving.rebooted(before, *restarted).values())
    assert (watcher.most, watcher.doubled) == (PER_NODE, set())
    assert moving.migrations() == dict.fromkeys(kept, 1)
    evicted = {entry["objectRef"]["name"] for entry in evictions.evictions() if entry["responseStatus"]["code"] < 300}
    assert {name.removeprefix("virt-launcher-")[:7] for name in evicted} == set(restarted)
    moving.delete(path)
    moving.gone(path, PATIENCE)


@pytest.fixture
def labelled(stage: Stage) -> Iterator[Labels]:
    """Yield the environment with a thousand labelled nodes and no event in flight; delete the nodes afterwards."""
    more = NAMES[NODES:]
    stage.local.add_named(*more)
    seen = Labels(stage)
    with closing(seen.admin):
        seen.wish({"cpuModels": [], "minCPUModel": ""})
        seen.offer()
        seen.reaches(MARK, len(HASWELLS) + len(PENRYNS), PATIENCE)
        seen.settle()
        yield seen
        seen.withdraw()
        seen.admin.together(*(seen.admin.api.request("DELETE", node_path(name)) for name in more))


@proves("OSV-30", "OSV-31", "OSV-36", "OSV-38", "X-3")
def test_a_model_becomes_obsolete_on_a_thousand_nodes(labelled: Labels) -> None:
    """Removing a newly obsolete model takes one patch of each affected node, and later ticks write nothing.

    A round takes at most `LIMIT` seconds, and no event takes a function longer than `FUNCTION_LIMIT`.
    """
    written = labelled.audit()

    labelled.wish({"cpuModels": ["Haswell"]})
    labelled.reaches(HASWELL, 0, PATIENCE)
    labelled.settle()

    print(f"{len(HASWELLS)} of {len(NAMES)} nodes in {seconds(written):.2f} s; events: {labelled.longest()}")
    assert_each_once(written, HASWELLS)
    assert len(unheard(written)) <= FEW
    assert is_below(seconds(written), LIMIT)
    assert labelled.longest()[FUNCTION_LIMIT] == labelled.longest()["+Inf"]

    later = labelled.audit()
    for _ in range(len(NAMES) // 100 + 1):
        labelled.tick()
    assert patched(later) == {}


class Labels(labels.Stage):
    """The CPU label environment for an engine, on which `label-cpu` has its own process."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.local, stage.product)
        self.page = f"{stage.product.function_url('label-cpu')}metrics"
        self._heard, self._end = 0, 0

    def tick(self) -> None:
        """Send a tick now; return once `label-cpu` has handled it."""
        before = self._asked()
        assert post(tick(), self.product.broker_url).status_code == 202
        await_ready("a tick's look", lambda: self._asked() > before, self.product.servers)
        self.settle()

    def settle(self) -> None:
        """Wait until `label-cpu` has sent no request for a while."""
        seen, since = self._asked(), time.monotonic()
        while time.monotonic() - since < QUIET:
            time.sleep(0.2)
            if (now := self._asked()) != seen:
                seen, since = now, time.monotonic()

    def _asked(self) -> int:
        """Return the number of requests of `label-cpu` since the start.

        Each line of the audit log is read only once, because the log has the requests of a thousand nodes.
        """
        with self.cluster.audit_log.open("rb") as log:
            log.seek(self._end)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._end += len(whole) + len(newline)
        self._heard += sum(LABELLER in line for line in whole.split(b"\n"))
        return self._heard


def is_stuck(item: object, count: int) -> bool:
    """Return whether exactly `count` pods are pending and all are reported as not migratable."""
    status = item.get("status") or {} if isinstance(item, dict) else {}
    reasons = [each["reason"] for each in status.get("blockedPods") or []]
    return len(status.get("pendingPods") or []) == count and reasons == ["NotMigratable"] * count
