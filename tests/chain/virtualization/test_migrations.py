"""Tests for drains of nodes with VMs that migrate, restart elsewhere, or block the drain."""

from __future__ import annotations

import time
from http import HTTPStatus

import pytest

from kube.budgets import build_namespace_budgets_path
from kube.client.api_errors import ApiError
from kube.paths import Object
from kube.virtualization.virt_launcher_budgets import build_budget_name
from kube.virtualization.vmis import MIGRATIONS_PATH
from localcluster.audit_log import OWN_USER_PREFIX, AuditLog
from localcluster.simulators.kubevirt import get_object_path
from tests.chain.environment import has_succeeded
from tests.chain.virtualization.environment import (
    VirtualizationEnvironment,
    get_blocking_details_by_pod,
    get_boot,
    get_node_name,
    is_running,
)
from tests.machine_speed import is_below_scaled_limit
from tests.proofs import proves

UNMIGRATABLE_REASON = "the disk is not shared"
RESTARTED_VMS = ("always", "rerun")
MAX_MIGRATIONS, MAX_MIGRATIONS_PER_NODE = 5, 2
"""The default limits for concurrent migrations, in the whole cluster and from one node."""


@pytest.mark.slow
@proves("DRN-7", "DRN-8", "DRN-9", "DRN-11", "OSV-2", "OSV-6")
def test_drain_migrates_restarts_or_waits_for_vms(environment: VirtualizationEnvironment) -> None:
    """Check that a drain migrates six of ten VMs without interruption, restarts two elsewhere, and waits for two.

    The status reports that two VMs cannot be migrated, until their condition changes.
    """
    node, other_node = environment.create_node(), environment.create_node()
    migratable_names = [environment.create_vm(f"live-{number}", node) for number in range(6)]
    unmigratable_names = [
        environment.create_vm(f"stuck-{number}", node, unmigratable_reason=UNMIGRATABLE_REASON) for number in range(2)
    ]
    restarted_names = [environment.create_vm(f"plain-{number}", node, eviction_strategy="") for number in range(2)]
    all_names = [*migratable_names, *unmigratable_names, *restarted_names]
    original_boots = environment.wait_until_running(*all_names)
    environment.create_pods(node, 30)
    evictions = AuditLog(environment.cluster.audit_log)
    with environment.create_watcher() as watcher:
        path = environment.create_maintenance(node)
        blocked_maintenance = environment.wait_for_state(
            path,
            lambda maintenance: (
                has_pending_count(maintenance, 2) and do_all_blocked_messages_contain(maintenance, UNMIGRATABLE_REASON)
            ),
        )
        assert {reason for reason, _ in get_blocking_details_by_pod(blocked_maintenance).values()} == {"NotMigratable"}
        vmis = environment.wait_for_vmis(
            lambda vmis_by_name: all(is_running(vmis_by_name.get(name)) for name in all_names)
        )
        assert {name: get_boot(vmis[name]) for name in migratable_names} == {
            name: original_boots[name] for name in migratable_names
        }
        assert {get_node_name(vmis[name]) for name in migratable_names} <= set(list_node_names(environment)) - {node}
        assert all(get_boot(vmis[name]) != original_boots[name] for name in restarted_names)
        for name in unmigratable_names:
            environment.make_migratable(name)
        environment.wait_for_state(path)
    after = environment.wait_until_running(*all_names)
    assert {name: after[name] for name in unmigratable_names} == {
        name: original_boots[name] for name in unmigratable_names
    }
    assert environment.reaches_node_limit(MAX_MIGRATIONS_PER_NODE, watcher.max_concurrent)
    assert watcher.vmis_with_two_migrations == set()
    assert environment.list_shut_down_vms(evictions) == set(restarted_names)
    assert {name: len(migrations) for name, migrations in watcher.migrations_by_vmi.items()} == dict.fromkeys(
        [*migratable_names, *unmigratable_names], 1
    )
    assert other_node in list_node_names(environment)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    assert node not in {
        get_node_name(vmi) for vmi in environment.wait_for_vmis(lambda vmis_by_name: len(vmis_by_name) == 10).values()
    }


def list_node_names(environment: VirtualizationEnvironment) -> list[str]:
    """Return the names of all nodes."""
    return [node["metadata"]["name"] for node in environment.client.list("/api/v1/nodes")["items"]]


def has_pending_count(maintenance: object, count: int) -> bool:
    """Return whether the maintenance's status contains `count` pending pods."""
    status = maintenance.get("status") or {} if isinstance(maintenance, dict) else {}
    return len(status.get("pendingPods") or []) == count


def do_all_blocked_messages_contain(maintenance: dict[str, object], text: str) -> bool:
    """Return whether pods are blocked, and the message about each of them contains `text`."""
    blocked = get_blocking_details_by_pod(maintenance)
    return bool(blocked) and all(text in message for _, message in blocked.values())


@proves("OSV-2")
def test_migration_starts_soon_after_vmi_becomes_migratable(environment: VirtualizationEnvironment) -> None:
    """Check that a migration starts within half a second after the VMI becomes migratable."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("late", node, unmigratable_reason=UNMIGRATABLE_REASON)
    environment.wait_until_running(name)
    path = environment.create_maintenance(node)
    environment.wait_for_state(
        path, lambda maintenance: do_all_blocked_messages_contain(maintenance, UNMIGRATABLE_REASON)
    )
    with environment.create_watcher() as watcher:
        environment.make_migratable(name)
        started = time.monotonic()
        environment.wait_for_state(path)
    seconds = watcher.first_seen_at[environment.vm_namespace, name] - started
    print(f"{seconds:.3f} s from the VMI's condition to the migration")
    assert is_below_scaled_limit(seconds, 0.5)


@pytest.mark.slow
@proves("DRN-8", "C3")
@pytest.mark.parametrize("taint_key", ["medik8s.io/drain", "kubevirt.io/drain"])
def test_next_tick_migrates_vms_if_taint_is_set_by_hand(environment: VirtualizationEnvironment, taint_key: str) -> None:
    """Check that the next tick migrates a node's VMs after a drain taint is added by hand, with any value."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("by-hand", node)
    original_boots = environment.wait_until_running(name)
    environment.set_taints(node, {"key": taint_key, "value": "whatever", "effect": "NoSchedule"})
    environment.send_tick()
    after = environment.wait_for_vmis(lambda vmis: get_node_name(vmis[name]) not in ("", node))
    assert get_boot(after[name]) == original_boots[name]
    environment.set_taints(node)


@pytest.mark.slow
@proves("DRN-9")
def test_failed_migration_is_reported_and_retried(environment: VirtualizationEnvironment) -> None:
    """Check that a failed migration is reported and retried, while the VM keeps running."""
    node, other_node = environment.create_node(), environment.create_node()
    name = environment.create_vm("unlucky", node)
    original_boots = environment.wait_until_running(name)
    other_nodes = [node_name for node_name in list_node_names(environment) if node_name != node]
    environment.set_migration_failure(*other_nodes)
    evictions = AuditLog(environment.cluster.audit_log)
    path = environment.create_maintenance(node)
    maintenance = environment.wait_for_state(
        path,
        lambda state: any(reason == "MigrationFailed" for reason, _ in get_blocking_details_by_pod(state).values()),
    )
    assert "failed once" in str(get_blocking_details_by_pod(maintenance))
    assert get_node_name(environment.wait_for_vmis(lambda vmis: name in vmis)[name]) == node
    environment.set_migration_failure(*other_nodes, is_enabled=False)
    environment.wait_with_ticks(lambda: environment.wait_for_state(path, timeout=3))
    assert environment.wait_until_running(name) == original_boots
    assert environment.count_migrations_by_vmi()[name] == 2
    assert environment.list_shut_down_vms(evictions) == set()
    assert other_node in other_nodes


@proves("DRN-9")
def test_product_budget_rejects_evictions_until_migration_is_finished(environment: VirtualizationEnvironment) -> None:
    """Check that the product's PDB makes other clients' evictions fail with 429 until the migration is finished.

    The virt-launcher pod stays in `pendingPods` until the end of the migration.
    """
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("guarded", node)
    original_boots = environment.wait_until_running(name)
    (pod,) = environment.list_pods_on(node)
    launcher, other_nodes = (
        pod["metadata"]["name"],
        [node_name for node_name in list_node_names(environment) if node_name != node],
    )
    budget = build_budget_name(environment.get_vmis_by_name()[name]["metadata"]["uid"])
    with environment.hold_migrations(*other_nodes):
        path = environment.create_maintenance(node)
        migration = environment.wait_for_running_migrations(name)[name]
        environment.wait_for_state(path, lambda maintenance: get_pending_pods(maintenance) == [launcher])
        environment.wait_for_object_state(
            build_namespace_budgets_path(environment.vm_namespace),
            budget,
            lambda budget: "observedGeneration" in budget.get("status", {}),
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
    pending_before_end = [
        get_pending_pods(state) for state in states if parse_resource_version(state) < migrated_version
    ]
    assert pending_before_end == [[launcher]] * len(pending_before_end) != []
    assert get_pending_pods(states[-1]) == []
    assert environment.wait_until_running(name) == original_boots


def get_pending_pods(maintenance: Object) -> list[str]:
    """Return the names in the maintenance's `status.pendingPods`."""
    return list((maintenance.get("status") or {}).get("pendingPods") or [])


def parse_resource_version(resource: Object) -> int:
    """Return an object's resourceVersion as a number: etcd's revision, which orders the writes to all objects."""
    return int(resource["metadata"]["resourceVersion"])


@proves("OSV-3", "C15", "C16")
def test_shut_down_vms_restart_by_run_strategy(environment: VirtualizationEnvironment) -> None:
    """Check that a VM that was shut down restarts elsewhere with run strategy Always or RerunOnFailure, not Manual."""
    node, _ = environment.create_node(), environment.create_node()
    strategies = {"always": "Always", "rerun": "RerunOnFailure", "manual": "Manual"}
    for name, strategy in strategies.items():
        environment.create_vm(name, node, run_strategy=strategy, eviction_strategy="")
    original_boots = environment.wait_until_running(*strategies)
    environment.wait_for_state(environment.create_maintenance(node))
    environment.wait_for_vmis(
        lambda vmis: all(
            is_running(vmis.get(name)) and get_boot(vmis[name]) != original_boots[name] for name in RESTARTED_VMS
        )
    )
    vmis_after_drain = environment.wait_for_vmis(lambda vmis: not is_running(vmis.get("manual")))
    assert {get_node_name(vmis_after_drain[name]) for name in RESTARTED_VMS} <= set(list_node_names(environment)) - {
        node
    }


@pytest.mark.slow
@proves("DRN-10")
def test_no_migration_or_budget_is_created_if_kubevirt_is_installed(environment: VirtualizationEnvironment) -> None:
    """Check that the product creates neither migrations nor PodDisruptionBudgets while KubeVirt is installed."""
    node, _ = environment.create_node(), environment.create_node()
    with environment.create_kubevirt_object():
        environment.wait_until_running(environment.create_vm("theirs", node))
        environment.set_taints(node, {"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"})
        environment.send_tick()
        assert environment.count_migrations_by_vmi() == {}
        assert "theirs" not in environment.list_protected_vmis()
    environment.send_tick()
    environment.wait_for_vmis(lambda vmis: get_node_name(vmis["theirs"]) != node)
    environment.set_taints(node)


@pytest.mark.slow
@proves("DRN-8")
def test_concurrent_migrations_stay_within_cluster_limit(environment: VirtualizationEnvironment) -> None:
    """Check that drains of four nodes with two VMs each migrate all VMs, but at most five at the same time."""
    source_nodes, _ = [environment.create_node() for _ in range(4)], environment.create_node()
    names = [environment.create_vm(f"one-of-many-{number}", source_nodes[number % 4]) for number in range(8)]
    original_boots = environment.wait_until_running(*names)
    with environment.create_watcher() as watcher:
        paths = [environment.create_maintenance(node) for node in source_nodes]
        for path in paths:
            environment.wait_for_state(path, timeout=60)
    assert (watcher.max_concurrent, watcher.vmis_with_two_migrations) == (MAX_MIGRATIONS, set())
    assert environment.wait_until_running(*names) == original_boots


@pytest.mark.slow
@proves("DRN-8", "DRN-9")
def test_deleted_migration_is_created_again(environment: VirtualizationEnvironment) -> None:
    """Check that deleted migrations are created again, and that no running virt-launcher pod is evicted."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("disturbed", node)
    original_boots = environment.wait_until_running(name)
    evictions = AuditLog(environment.cluster.audit_log)
    other_nodes = [node_name for node_name in list_node_names(environment) if node_name != node]
    with environment.hold_migrations(*other_nodes):
        path = environment.create_maintenance(node)
        for _ in range(3):
            environment.delete_migration(environment.wait_for_running_migrations(name)[name])
        environment.wait_for_running_migrations(name)
    environment.wait_for_state(path)
    assert environment.wait_until_running(name) == original_boots
    assert environment.list_shut_down_vms(evictions) == set()


@pytest.mark.slow
@proves("DRN-8")
def test_deleting_vm_frees_its_migration_slot(environment: VirtualizationEnvironment) -> None:
    """Check that deleting a VM during its migration frees the migration slot for another VM."""
    node, _ = environment.create_node(), environment.create_node()
    names = [environment.create_vm(f"one-of-three-{number}", node) for number in range(3)]
    environment.wait_until_running(*names)
    other_nodes = [node_name for node_name in list_node_names(environment) if node_name != node]
    with environment.hold_migrations(*other_nodes):
        path = environment.create_maintenance(node)
        blocked_maintenance = environment.wait_for_state(
            path,
            lambda maintenance: (
                sorted(list_blocking_reasons(maintenance)) == ["Migrating", "Migrating", "WaitsForSlot"]
            ),
        )
        assert not blocked_maintenance["status"].get("lastError")  # A waiting migration is not an error.
        first_migrating_vm = min(
            migration["spec"]["vmiName"] for migration in environment.client.list(MIGRATIONS_PATH)["items"]
        )
        environment.delete_vm(first_migrating_vm)
        environment.wait_for_running_migrations(*(name for name in names if name != first_migrating_vm))
    environment.wait_for_state(path)
    assert first_migrating_vm not in environment.count_migrations_by_vmi()


def list_blocking_reasons(maintenance: dict[str, object]) -> list[str]:
    """Return the block reason of each blocked pod."""
    return [reason for reason, _ in get_blocking_details_by_pod(maintenance).values()]
