"""Tests of drains of nodes with VMs of each kind: migrated, restarted elsewhere, or blocking."""

from __future__ import annotations

import time
from http import HTTPStatus

import pytest

from kube.budgets import build_budgets_path
from kube.client.api_errors import ApiError
from kube.paths import Object
from kube.virtualization.virt_launcher_budgets import build_name
from kube.virtualization.vmis import MIGRATIONS_PATH
from tests.chain.environment import has_succeeded
from tests.chain.virtualization.environment import (
    VirtualizationEnvironment,
    get_blocked_by_pod,
    get_boot,
    get_node_name,
    is_running,
)
from tests.fake_kubevirt_base import get_object_path
from tests.machine_speed import is_below_scaled_limit
from tests.proofs import proves
from tests.workload import OWN_USER_PREFIX, start_audit

UNMIGRATABLE_REASON = "the disk is not shared"
RESTARTED_VMS = ("always", "rerun")
MAX_MIGRATIONS, MAX_MIGRATIONS_PER_NODE = 5, 2
"""The shipped limits of concurrent migrations: in the cluster, and from one node."""


@pytest.mark.slow
@proves("DRN-7", "DRN-8", "DRN-9", "DRN-11", "OSV-2", "OSV-6")
def test_vms_migrate_block_or_restart(environment: VirtualizationEnvironment) -> None:
    """Drains migrate six of ten VMs without interruption, restart two elsewhere, and wait for two.

    The two waiting VMs are reported as not migratable until their condition changes.
    """
    node, other = environment.create_node(), environment.create_node()
    migratable = [environment.create_vm(f"live-{number}", node) for number in range(6)]
    unmigratable = [
        environment.create_vm(f"stuck-{number}", node, unmigratable_reason=UNMIGRATABLE_REASON) for number in range(2)
    ]
    restarted = [environment.create_vm(f"plain-{number}", node, eviction_strategy="") for number in range(2)]
    all_names = [*migratable, *unmigratable, *restarted]
    before = environment.await_running(*all_names)
    environment.create_pods(node, 30)
    evictions = start_audit(environment.cluster)
    with environment.create_watcher() as watcher:
        path = environment.create_maintenance(node)
        held = environment.await_state(
            path, lambda item: has_pending_count(item, 2) and do_all_messages_contain(item, UNMIGRATABLE_REASON)
        )
        assert {reason for reason, _ in get_blocked_by_pod(held).values()} == {"NotMigratable"}
        vmis = environment.await_vmis(
            lambda vmis_by_name: all(is_running(vmis_by_name.get(name)) for name in all_names)
        )
        assert {name: get_boot(vmis[name]) for name in migratable} == {name: before[name] for name in migratable}
        assert {get_node_name(vmis[name]) for name in migratable} <= set(list_node_names(environment)) - {node}
        assert all(get_boot(vmis[name]) != before[name] for name in restarted)
        for name in unmigratable:
            environment.make_migratable(name)
        environment.await_state(path)
    after = environment.await_running(*all_names)
    assert {name: after[name] for name in unmigratable} == {name: before[name] for name in unmigratable}
    assert environment.keeps_node_limit(MAX_MIGRATIONS_PER_NODE, watcher.max_concurrent)
    assert watcher.vmis_with_two_migrations == set()
    assert environment.list_shut_down_vms(evictions) == set(restarted)
    assert {name: len(migrations) for name, migrations in watcher.migrations_by_vmi.items()} == dict.fromkeys(
        [*migratable, *unmigratable], 1
    )
    assert other in list_node_names(environment)
    environment.request_deletion(path)
    environment.await_deletion(path)
    assert node not in {
        get_node_name(vmi) for vmi in environment.await_vmis(lambda vmis_by_name: len(vmis_by_name) == 10).values()
    }


def list_node_names(environment: VirtualizationEnvironment) -> list[str]:
    """Return the names of all nodes."""
    return [node["metadata"]["name"] for node in environment.client.list("/api/v1/nodes")["items"]]


def has_pending_count(item: object, count: int) -> bool:
    """Return whether `count` pods are pending."""
    status = item.get("status") or {} if isinstance(item, dict) else {}
    return len(status.get("pendingPods") or []) == count


def do_all_messages_contain(item: dict[str, object], text: str) -> bool:
    """Return whether there are blocked pods, and the message of each contains `text`."""
    blocked = get_blocked_by_pod(item)
    return bool(blocked) and all(text in message for _, message in blocked.values())


@proves("OSV-2")
def test_migration_follows_condition_within_limit(environment: VirtualizationEnvironment) -> None:
    """Migrations start within half a second of the VMI's condition."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("late", node, unmigratable_reason=UNMIGRATABLE_REASON)
    environment.await_running(name)
    path = environment.create_maintenance(node)
    environment.await_state(path, lambda item: do_all_messages_contain(item, UNMIGRATABLE_REASON))
    with environment.create_watcher() as watcher:
        environment.make_migratable(name)
        started = time.monotonic()
        environment.await_state(path)
    seconds = watcher.first_seen_at[environment.vm_namespace, name] - started
    print(f"{seconds:.3f} s from the condition to the migration")
    assert is_below_scaled_limit(seconds, 0.5)


@pytest.mark.slow
@proves("DRN-8", "C3")
@pytest.mark.parametrize("key", ["medik8s.io/drain", "kubevirt.io/drain"])
def test_manual_taint_migrates_vms_at_next_tick(environment: VirtualizationEnvironment, key: str) -> None:
    """Drain taints set by hand, with either key and any value, make the next tick migrate the VMs."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("by-hand", node)
    before = environment.await_running(name)
    environment.set_taints(node, {"key": key, "value": "whatever", "effect": "NoSchedule"})
    environment.send_tick()
    after = environment.await_vmis(lambda vmis: get_node_name(vmis[name]) not in ("", node))
    assert get_boot(after[name]) == before[name]
    environment.set_taints(node)


@pytest.mark.slow
@proves("DRN-9")
def test_failed_migration_is_reported_and_retried(environment: VirtualizationEnvironment) -> None:
    """Failed migrations are reported and retried; the VM keeps running, and its pod is not evicted."""
    node, other = environment.create_node(), environment.create_node()
    name = environment.create_vm("unlucky", node)
    before = environment.await_running(name)
    other_nodes = [name_ for name_ in list_node_names(environment) if name_ != node]
    environment.set_migrations_fail(*other_nodes)
    evictions = start_audit(environment.cluster)
    path = environment.create_maintenance(node)
    maintenance = environment.await_state(
        path, lambda item: any(reason == "MigrationFailed" for reason, _ in get_blocked_by_pod(item).values())
    )
    assert "failed once" in str(get_blocked_by_pod(maintenance))
    assert get_node_name(environment.await_vmis(lambda vmis: name in vmis)[name]) == node
    environment.set_migrations_fail(*other_nodes, fails=False)
    environment.wait_with_ticks(lambda: environment.await_state(path, timeout=3))
    assert environment.await_running(name) == before
    assert environment.count_migrations_by_vmi()[name] == 2
    assert environment.list_shut_down_vms(evictions) == set()
    assert other in other_nodes


@proves("DRN-9")
def test_own_budget_rejects_evictions_until_migrated(environment: VirtualizationEnvironment) -> None:
    """Evictions by other clients are rejected with 429 and the product's budget, until the migration is done.

    The virt-launcher pod stays in `pendingPods` until then.
    """
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("guarded", node)
    before = environment.await_running(name)
    (pod,) = environment.list_pods_on(node)
    launcher, other_nodes = (
        pod["metadata"]["name"],
        [node_name for node_name in list_node_names(environment) if node_name != node],
    )
    budget = build_name(environment.get_vmis_by_name()[name]["metadata"]["uid"])
    with environment.hold_migrations(*other_nodes):
        path = environment.create_maintenance(node)
        migration = environment.await_running_migrations(name)[name]
        environment.await_state(path, lambda item: get_pending_pods(item) == [launcher])
        environment.await_state_of(
            build_budgets_path(environment.vm_namespace),
            budget,
            lambda item: "observedGeneration" in item.get("status", {}),
        )
        kubectl_result = environment.evict_by_kubectl(launcher)
        with pytest.raises(ApiError) as client_error:
            environment.evict_pod(launcher)
    states = environment.record_states_until(path, has_succeeded)

    assert kubectl_result.returncode == 1
    assert "Error from server (TooManyRequests): Cannot evict pod" in kubectl_result.stderr
    (cause,) = client_error.value.body["details"]["causes"]
    assert (client_error.value.status, cause["reason"]) == (HTTPStatus.TOO_MANY_REQUESTS, "DisruptionBudget")
    assert budget in cause["message"]
    assert environment.list_budget_creators(budget) == [f"{OWN_USER_PREFIX}functions"]
    migrated_version = parse_resource_version(
        environment.client.get(get_object_path(migration, "virtualmachineinstancemigrations"))
    )
    pending_before_end = [get_pending_pods(item) for item in states if parse_resource_version(item) < migrated_version]
    assert pending_before_end == [[launcher]] * len(pending_before_end) != []
    assert get_pending_pods(states[-1]) == []
    assert environment.await_running(name) == before


def get_pending_pods(item: Object) -> list[str]:
    """Return the names in `status.pendingPods` of a maintenance."""
    return list((item.get("status") or {}).get("pendingPods") or [])


def parse_resource_version(item: Object) -> int:
    """Return an object's resource version: etcd's revision, which orders the writes of all objects."""
    return int(item["metadata"]["resourceVersion"])


@proves("OSV-3", "C15", "C16")
def test_shut_down_vms_restart_by_run_strategy(environment: VirtualizationEnvironment) -> None:
    """VMs that are shut down run elsewhere with the run strategies Always and RerunOnFailure, but not with Manual."""
    node, _ = environment.create_node(), environment.create_node()
    strategies = {"always": "Always", "rerun": "RerunOnFailure", "manual": "Manual"}
    for name, strategy in strategies.items():
        environment.create_vm(name, node, run_strategy=strategy, eviction_strategy="")
    before = environment.await_running(*strategies)
    environment.await_state(environment.create_maintenance(node))
    environment.await_vmis(
        lambda vmis: all(is_running(vmis.get(name)) and get_boot(vmis[name]) != before[name] for name in RESTARTED_VMS)
    )
    stopped = environment.await_vmis(lambda vmis: not is_running(vmis.get("manual")))
    assert {get_node_name(stopped[name]) for name in RESTARTED_VMS} <= set(list_node_names(environment)) - {node}


@pytest.mark.slow
@proves("DRN-10")
def test_nothing_is_created_if_kubevirt_is_installed(environment: VirtualizationEnvironment) -> None:
    """Functions create neither a migration nor a budget while KubeVirt is installed."""
    node, _ = environment.create_node(), environment.create_node()
    with environment.declare_kubevirt():
        environment.await_running(environment.create_vm("theirs", node))
        environment.set_taints(node, {"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"})
        environment.send_tick()
        assert environment.count_migrations_by_vmi() == {}
        assert "theirs" not in environment.list_protected_vmis()
    environment.send_tick()
    environment.await_vmis(lambda vmis: get_node_name(vmis["theirs"]) != node)
    environment.set_taints(node)


@pytest.mark.slow
@proves("DRN-8")
def test_cluster_wide_migration_limit_holds(environment: VirtualizationEnvironment) -> None:
    """Drains of four nodes with two VMs each migrate five VMs at a time, and all in the end."""
    sources, _ = [environment.create_node() for _ in range(4)], environment.create_node()
    names = [environment.create_vm(f"one-of-many-{number}", sources[number % 4]) for number in range(8)]
    before = environment.await_running(*names)
    with environment.create_watcher() as watcher:
        paths = [environment.create_maintenance(node) for node in sources]
        for path in paths:
            environment.await_state(path, timeout=60)
    assert (watcher.max_concurrent, watcher.vmis_with_two_migrations) == (MAX_MIGRATIONS, set())
    assert environment.await_running(*names) == before


@pytest.mark.slow
@proves("DRN-8", "DRN-9")
def test_deleted_migration_is_created_again(environment: VirtualizationEnvironment) -> None:
    """Deleted migrations are created again, and no virt-launcher pod is evicted."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("disturbed", node)
    before = environment.await_running(name)
    evictions = start_audit(environment.cluster)
    other_nodes = [node_name for node_name in list_node_names(environment) if node_name != node]
    with environment.hold_migrations(*other_nodes):
        path = environment.create_maintenance(node)
        for _ in range(3):
            environment.delete_migration(environment.await_running_migrations(name)[name])
        environment.await_running_migrations(name)
    environment.await_state(path)
    assert environment.await_running(name) == before
    assert environment.list_shut_down_vms(evictions) == set()


@pytest.mark.slow
@proves("DRN-8")
def test_deleted_vm_frees_migration_slot(environment: VirtualizationEnvironment) -> None:
    """Deleting a VM during its migration also deletes the migration, and another VM uses its migration slot."""
    node, _ = environment.create_node(), environment.create_node()
    names = [environment.create_vm(f"one-of-three-{number}", node) for number in range(3)]
    environment.await_running(*names)
    other_nodes = [node_name for node_name in list_node_names(environment) if node_name != node]
    with environment.hold_migrations(*other_nodes):
        path = environment.create_maintenance(node)
        held = environment.await_state(
            path, lambda item: sorted(list_blocking_reasons(item)) == ["Migrating", "Migrating", "WaitsForSlot"]
        )
        assert not held["status"].get("lastError")  # a waiting migration is not an error
        first = sorted(item["spec"]["vmiName"] for item in environment.client.list(MIGRATIONS_PATH)["items"])[0]
        environment.delete_vm(first)
        environment.await_running_migrations(*(name for name in names if name != first))
    environment.await_state(path)
    assert first not in environment.count_migrations_by_vmi()


def list_blocking_reasons(item: dict[str, object]) -> list[str]:
    """Return the reason of each blocked pod."""
    return [reason for reason, _ in get_blocked_by_pod(item).values()]
