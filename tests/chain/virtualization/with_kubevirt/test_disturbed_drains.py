"""Tests of drains with KubeVirt during which users set taints, delete objects or fix problems (DRN-8 to DRN-11)."""

from __future__ import annotations

import time

import pytest

from kube.virtualization.vmis import migrations_path
from tests.chain.virtualization.with_kubevirt.environment import BesideStage
from tests.chain.virtualization.with_kubevirt.test_passive import says
from tests.chain.virtualization.environment import blocked, booted, is_running, node_of
from tests.chain.virtualization.test_migrations import all_say, nodes
from tests.machine_speed import is_below
from tests.proofs import proves
from tests.waiting import until
from tests.workload import audit

pytestmark = pytest.mark.slow

WHY = "the disk is not shared"


@proves("DRN-8", "DRN-10", "C3")
@pytest.mark.parametrize("key", ["medik8s.io/drain", "kubevirt.io/drain"])
def test_a_taint_set_by_hand_moves_machines_where_kubevirt_knows_it(stage: BesideStage, key: str) -> None:
    """Taints set by hand make KubeVirt migrate the VMs if it is configured with the key.

    The product creates neither a migration nor a budget.
    """
    node, _ = stage.node(), stage.node()
    before = stage.run(stage.machine("by-hand", node))
    with stage.told({"migrations": {"nodeDrainTaintKey": key}}):
        stage.taint(node, {"key": key, "value": "whatever", "effect": "NoSchedule"})
        after = stage.await_instances(lambda known: node_of(known["by-hand"]) not in ("", node))
    assert booted(after["by-hand"]) == before["by-hand"]
    stage.taint(node)
    assert stage.ours() == []


@proves("DRN-10", "DRN-11")
def test_an_instance_that_nobody_owns_ends_and_the_drain_with_it(stage: BesideStage) -> None:
    """Drains complete with a VMI that no VM owns: it is shut down, and KubeVirt keeps it in phase Failed."""
    node, _ = stage.node(), stage.node()
    stage.run(stage.instance("ownerless", node))
    evictions = audit(stage.cluster)
    done = stage.reaches(stage.maintain(node))
    assert blocked(done) == {}
    ended = stage.await_instances(lambda known: not is_running(known["ownerless"]))
    assert ended["ownerless"]["status"]["phase"] == "Failed"
    assert stage.shut_down(evictions) == {"ownerless"}


@proves("DRN-10", "OSV-2")
def test_a_machine_that_becomes_migratable_moves_without_a_tick(stage: BesideStage) -> None:
    """Drains end within half a second of the last virt-launcher pod's end; KubeVirt starts the migration."""
    node, _ = stage.node(), stage.node()
    stage.run(stage.machine("late", node, why=WHY))
    path = stage.maintain(node)
    stage.reaches(path, lambda item: all_say(item, WHY))
    stage.able("late")
    began = time.monotonic()
    with stage.watcher() as watcher:
        stage.reaches(path)
        ended = time.monotonic()
    theirs = watcher.seen[stage.space, "late"] - began
    left = stage.handler.completed_at[-1]
    print(f"KubeVirt's migration began after {theirs:.2f} s; the drain ended {ended - left:.2f} s after its launcher")
    assert is_below(ended - left, 0.5)


@proves("DRN-9", "DRN-10")
def test_a_migration_deleted_amid_its_work_shuts_nobody_down(stage: BesideStage) -> None:
    """Deleting a migration does not shut down its VM; KubeVirt starts the next migration within a minute.

    Until then only virt-api prevents the eviction: while the target's virt-launcher pod exists, KubeVirt's budget
    allows one disruption.
    """
    node, _ = stage.node(), stage.node()
    stage.run(stage.machine("disturbed", node))
    evictions = audit(stage.cluster)
    with stage.api, stage.holding(*(each for each in nodes(stage) if each != node)):
        path = stage.maintain(node)
        stage.delete_migration(stage.migrating("disturbed")["disturbed"])
        until(stage.admin, migrations_path(stage.space), lambda known: not known)
        stage.tick()
        stage.reaches(path, lambda item: says(item, "Migrating"))
    assert stage.shut_down(evictions) == set()
    stage.delete_machine("disturbed")
    stage.reaches(path)
    assert stage.ours() == []


@proves("DRN-9", "DRN-10")
def test_a_machine_that_is_deleted_amid_its_migration_holds_no_drain(stage: BesideStage) -> None:
    """Deleting a VM during its migration delays neither the drain nor the migration of another VM."""
    node, _ = stage.node(), stage.node()
    before = stage.run(stage.machine("deleted", node), stage.machine("left", node))
    evictions = audit(stage.cluster)
    with stage.holding(*(each for each in nodes(stage) if each != node)):
        path = stage.maintain(node)
        stage.migrating("deleted", "left")
        stage.delete_machine("deleted")
        stage.await_instances(lambda known: "deleted" not in known)
    stage.reaches(path)
    assert stage.run("left") == {"left": before["left"]}
    assert stage.shut_down(evictions) <= {"deleted"}
    assert stage.ours() == []
