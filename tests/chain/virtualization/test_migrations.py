"""Tests of drains of nodes with VMs of each kind: migrated, restarted elsewhere, or blocking."""

from __future__ import annotations

import time
from http import HTTPStatus

import pytest

from kube.budgets import budgets_in
from kube.client.api_errors import ApiError
from kube.paths import Object
from kube.virtualization.virt_launcher_budgets import name_of
from kube.virtualization.vmis import MIGRATIONS
from tests.chain.environment import finished
from tests.chain.virtualization.environment import Stage, blocked, booted, is_running, node_of
from tests.machine_speed import is_below
from tests.proofs import proves
from tests.fake_kubevirt_base import path_of
from tests.workload import OURS, audit

WHY = "the disk is not shared"
RESTARTED = ("always", "rerun")
IN_ALL, PER_NODE = 5, 2
"""The shipped limits of concurrent migrations: in the cluster, and from one node."""


@pytest.mark.slow
@proves("DRN-7", "DRN-8", "DRN-9", "DRN-11", "OSV-2", "OSV-6")
def test_ten_machines_and_thirty_pods_leave_their_node(stage: Stage) -> None:
    """Drains migrate six of ten VMs without interruption, restart two elsewhere, and wait for two.

    The two waiting VMs are reported as not migratable until their condition changes.
    """
    node, other = stage.node(), stage.node()
    movable = [stage.machine(f"live-{number}", node) for number in range(6)]
    stuck = [stage.machine(f"stuck-{number}", node, why=WHY) for number in range(2)]
    restarted = [stage.machine(f"plain-{number}", node, evict="") for number in range(2)]
    everybody = [*movable, *stuck, *restarted]
    before = stage.run(*everybody)
    stage.pods(node, 30)
    evictions = audit(stage.cluster)
    with stage.watcher() as watcher:
        path = stage.maintain(node)
        held = stage.reaches(path, lambda item: left(item, 2) and all_say(item, WHY))
        assert {reason for reason, _ in blocked(held).values()} == {"NotMigratable"}
        moved = stage.await_instances(lambda known: all(is_running(known.get(name)) for name in everybody))
        assert {name: booted(moved[name]) for name in movable} == {name: before[name] for name in movable}
        assert {node_of(moved[name]) for name in movable} <= set(nodes(stage)) - {node}
        assert all(booted(moved[name]) != before[name] for name in restarted)
        for name in stuck:
            stage.able(name)
        stage.reaches(path)
    after = stage.run(*everybody)
    assert {name: after[name] for name in stuck} == {name: before[name] for name in stuck}
    assert stage.keeps_node_limit(PER_NODE, watcher.most)
    assert watcher.doubled == set()
    assert stage.shut_down(evictions) == set(restarted)
    assert {name: len(made) for name, made in watcher.made.items()} == dict.fromkeys([*movable, *stuck], 1)
    assert other in nodes(stage)
    stage.delete(path)
    stage.gone(path)
    assert node not in {node_of(each) for each in stage.await_instances(lambda known: len(known) == 10).values()}


def nodes(stage: Stage) -> list[str]:
    """Return the names of all nodes."""
    return [node["metadata"]["name"] for node in stage.admin.list("/api/v1/nodes")["items"]]


def left(item: object, count: int) -> bool:
    """Return whether `count` pods are pending."""
    status = item.get("status") or {} if isinstance(item, dict) else {}
    return len(status.get("pendingPods") or []) == count


def all_say(item: dict[str, object], text: str) -> bool:
    """Return whether there are blocked pods, and the message of each contains `text`."""
    found = blocked(item)
    return bool(found) and all(text in message for _, message in found.values())


@proves("OSV-2")
def test_a_machine_that_becomes_migratable_moves_at_once(stage: Stage) -> None:
    """Migrations start within half a second of the VMI's condition."""
    node, _ = stage.node(), stage.node()
    name = stage.machine("late", node, why=WHY)
    stage.run(name)
    path = stage.maintain(node)
    stage.reaches(path, lambda item: all_say(item, WHY))
    with stage.watcher() as watcher:
        stage.able(name)
        began = time.monotonic()
        stage.reaches(path)
    took = watcher.seen[stage.space, name] - began
    print(f"{took:.3f} s from the condition to the migration")
    assert is_below(took, 0.5)


@pytest.mark.slow
@proves("DRN-8", "C3")
@pytest.mark.parametrize("key", ["medik8s.io/drain", "kubevirt.io/drain"])
def test_a_taint_set_by_hand_moves_machines_with_the_next_tick(stage: Stage, key: str) -> None:
    """Drain taints set by hand, with either key and any value, make the next tick migrate the VMs."""
    node, _ = stage.node(), stage.node()
    name = stage.machine("by-hand", node)
    before = stage.run(name)
    stage.taint(node, {"key": key, "value": "whatever", "effect": "NoSchedule"})
    stage.tick()
    after = stage.await_instances(lambda known: node_of(known[name]) not in ("", node))
    assert booted(after[name]) == before[name]
    stage.taint(node)


@pytest.mark.slow
@proves("DRN-9")
def test_a_migration_that_fails_is_told_and_tried_again(stage: Stage) -> None:
    """Failed migrations are reported and retried; the VM keeps running, and its pod is not evicted."""
    node, other = stage.node(), stage.node()
    name = stage.machine("unlucky", node)
    before = stage.run(name)
    everywhere = [each for each in nodes(stage) if each != node]
    stage.fail_on(*everywhere)
    evictions = audit(stage.cluster)
    path = stage.maintain(node)
    told = stage.reaches(path, lambda item: any(reason == "MigrationFailed" for reason, _ in blocked(item).values()))
    assert "failed once" in str(blocked(told))
    assert node_of(stage.await_instances(lambda known: name in known)[name]) == node
    stage.fail_on(*everywhere, fails=False)
    stage.by_ticks(lambda: stage.reaches(path, seconds=3))
    assert stage.run(name) == before
    assert stage.migrations()[name] == 2
    assert stage.shut_down(evictions) == set()
    assert other in everywhere


@proves("DRN-9")
def test_our_budget_refuses_another_clients_eviction_until_the_migration_is_done(stage: Stage) -> None:
    """Evictions by other clients are rejected with 429 and the product's budget, until the migration is done.

    The virt-launcher pod stays in `pendingPods` until then.
    """
    node, _ = stage.node(), stage.node()
    name = stage.machine("guarded", node)
    before = stage.run(name)
    (pod,) = stage.pods_on(node)
    launcher, away = pod["metadata"]["name"], [each for each in nodes(stage) if each != node]
    budget = name_of(stage.instances()[name]["metadata"]["uid"])
    with stage.holding(*away):
        path = stage.maintain(node)
        migration = stage.migrating(name)[name]
        stage.reaches(path, lambda item: pending(item) == [launcher])
        stage.until(budgets_in(stage.space), budget, lambda item: "observedGeneration" in item.get("status", {}))
        by_kubectl = stage.evict_by_kubectl(launcher)
        with pytest.raises(ApiError) as by_client:
            stage.evict(launcher)
    states = stage.history(path, finished)

    assert by_kubectl.returncode == 1
    assert "Error from server (TooManyRequests): Cannot evict pod" in by_kubectl.stderr
    (cause,) = by_client.value.body["details"]["causes"]
    assert (by_client.value.status, cause["reason"]) == (HTTPStatus.TOO_MANY_REQUESTS, "DisruptionBudget")
    assert budget in cause["message"]
    assert stage.creators(budget) == [f"{OURS}functions"]
    moved = version(stage.admin.get(path_of(migration, "virtualmachineinstancemigrations")))
    before_its_end = [pending(item) for item in states if version(item) < moved]
    assert before_its_end == [[launcher]] * len(before_its_end) != []
    assert pending(states[-1]) == []
    assert stage.run(name) == before


def pending(item: Object) -> list[str]:
    """Return the names in `status.pendingPods` of a maintenance."""
    return list((item.get("status") or {}).get("pendingPods") or [])


def version(item: Object) -> int:
    """Return an object's resource version: etcd's revision, which orders the writes of all objects."""
    return int(item["metadata"]["resourceVersion"])


@proves("OSV-3", "C15", "C16")
def test_who_is_shut_down_is_restarted_as_its_run_strategy_says(stage: Stage) -> None:
    """VMs that are shut down run elsewhere with the run strategies Always and RerunOnFailure, but not with Manual."""
    node, _ = stage.node(), stage.node()
    strategies = {"always": "Always", "rerun": "RerunOnFailure", "manual": "Manual"}
    for name, strategy in strategies.items():
        stage.machine(name, node, strategy=strategy, evict="")
    before = stage.run(*strategies)
    stage.reaches(stage.maintain(node))
    stage.await_instances(
        lambda found: all(is_running(found.get(name)) and booted(found[name]) != before[name] for name in RESTARTED)
    )
    known = stage.await_instances(lambda found: not is_running(found.get("manual")))
    assert {node_of(known[name]) for name in RESTARTED} <= set(nodes(stage)) - {node}


@pytest.mark.slow
@proves("DRN-10")
def test_where_kubevirt_is_installed_nothing_of_ours_is_made(stage: Stage) -> None:
    """Functions create neither a migration nor a budget while KubeVirt is installed."""
    node, _ = stage.node(), stage.node()
    with stage.kubevirt():
        stage.run(stage.machine("theirs", node))
        stage.taint(node, {"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"})
        stage.tick()
        assert stage.migrations() == {}
        assert "theirs" not in stage.protected()
    stage.tick()
    stage.await_instances(lambda known: node_of(known["theirs"]) != node)
    stage.taint(node)


@pytest.mark.slow
@proves("DRN-8")
def test_no_more_migrate_at_once_than_may_in_the_whole_cluster(stage: Stage) -> None:
    """Drains of four nodes with two VMs each migrate five VMs at a time, and all in the end."""
    sources, _ = [stage.node() for _ in range(4)], stage.node()
    names = [stage.machine(f"one-of-many-{number}", sources[number % 4]) for number in range(8)]
    before = stage.run(*names)
    with stage.watcher() as watcher:
        paths = [stage.maintain(node) for node in sources]
        for path in paths:
            stage.reaches(path, seconds=60)
    assert (watcher.most, watcher.doubled) == (IN_ALL, set())
    assert stage.run(*names) == before


@pytest.mark.slow
@proves("DRN-8", "DRN-9")
def test_a_migration_deleted_amid_its_work_is_made_again_and_nobody_shut_down(stage: Stage) -> None:
    """Deleted migrations are created again, and no virt-launcher pod is evicted."""
    node, _ = stage.node(), stage.node()
    name = stage.machine("disturbed", node)
    before = stage.run(name)
    evictions = audit(stage.cluster)
    away = [each for each in nodes(stage) if each != node]
    with stage.holding(*away):
        path = stage.maintain(node)
        for _ in range(3):
            stage.delete_migration(stage.migrating(name)[name])
        stage.migrating(name)
    stage.reaches(path)
    assert stage.run(name) == before
    assert stage.shut_down(evictions) == set()


@pytest.mark.slow
@proves("DRN-8")
def test_the_slot_of_a_machine_that_is_deleted_amid_its_migration_is_free_at_once(stage: Stage) -> None:
    """Deleting a VM during its migration also deletes the migration, and another VM uses its migration slot."""
    node, _ = stage.node(), stage.node()
    names = [stage.machine(f"one-of-three-{number}", node) for number in range(3)]
    stage.run(*names)
    away = [each for each in nodes(stage) if each != node]
    with stage.holding(*away):
        path = stage.maintain(node)
        held = stage.reaches(path, lambda item: sorted(reasons(item)) == ["Migrating", "Migrating", "WaitsForSlot"])
        assert not held["status"].get("lastError")  # a waiting migration is not an error
        first = sorted(item["spec"]["vmiName"] for item in stage.admin.list(MIGRATIONS)["items"])[0]
        stage.delete_machine(first)
        stage.migrating(*(name for name in names if name != first))
    stage.reaches(path)
    assert first not in stage.migrations()


def reasons(item: dict[str, object]) -> list[str]:
    """Return the reason of each blocked pod."""
    return [reason for reason, _ in blocked(item).values()]
