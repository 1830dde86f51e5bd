"""Tests that the product leaves migrations to KubeVirt, and migrates VMs itself after KubeVirt is removed (DRN-10)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kube.maintenance.groups import KUBEVIRT
from kube.paths import Object
from kube.virtualization.virt_launcher_budgets import VMI_UID_LABEL
from kube.virtualization.vmis import LIVE_MIGRATE_IF_POSSIBLE, MIGRATIONS_PATH
from localcluster.audit_log import AuditLog
from localcluster.waiting import wait_for_collection
from tests.chain.virtualization.environment import TIMEOUT_SECONDS, get_blocking_details_by_pod, get_node_name
from tests.chain.virtualization.test_migrations import list_node_names
from tests.chain.virtualization.with_kubevirt.environment import TAINT_KEY, KubeVirtEnvironment
from tests.proofs import proves

pytestmark = pytest.mark.slow

REMEDY_TEXT = f"set spec.configuration.migrations.nodeDrainTaintKey of KubeVirt kubevirt/kubevirt to {TAINT_KEY}"


def has_only_blocked_pod(maintenance: Object, reason: str, text: str = "") -> bool:
    """Return whether the status lists exactly one blocked pod, with this reason and with `text` in its message."""
    return [
        blocking_reason == reason and text in message
        for blocking_reason, message in get_blocking_details_by_pod(maintenance).values()
    ] == [True]


@proves("DRN-10", "C3")
def test_taint_unknown_to_kubevirt_is_reported_with_remedy(environment: KubeVirtEnvironment) -> None:
    """Check that the status names a remedy if KubeVirt is not configured with the drain taint of the maintenance.

    By default, KubeVirt reacts only to the taint of the oldest API group. Once KubeVirt is configured with the taint,
    the drain continues.
    """
    node, older_api_node, _ = environment.create_node(), environment.create_node(), environment.create_node()
    original_boots = environment.wait_until_running(
        environment.create_vm("waiting", node), environment.create_vm("migrating", older_api_node)
    )
    with environment.configure_kubevirt({}):
        path = environment.create_maintenance(node)
        environment.wait_for_state(
            path, lambda maintenance: has_only_blocked_pod(maintenance, "WaitsForKubeVirt", REMEDY_TEXT)
        )
        with environment.hold_migrations(*list_node_names(environment)):
            older_api_maintenance = environment.create_maintenance(older_api_node, api_version=KUBEVIRT.api_version)
            environment.wait_for_state(
                older_api_maintenance, lambda maintenance: has_only_blocked_pod(maintenance, "Migrating", "is Running")
            )
        environment.wait_for_state(older_api_maintenance)
        assert get_node_name(environment.get_vmis_by_name()["waiting"]) == node
    environment.write_heartbeat(node)
    environment.wait_for_state(path)
    assert environment.wait_until_running(*original_boots) == original_boots
    assert environment.list_product_objects() == []


@proves("DRN-10", "DRN-9")
def test_kubevirt_migrates_vmi_whose_eviction_is_rejected(environment: KubeVirtEnvironment) -> None:
    """Check that KubeVirt migrates a VMI whose eviction virt-api rejects, regardless of the node's taints.

    The maintenance's status reports a VMI that cannot be migrated.
    """
    node, _ = environment.create_node(), environment.create_node()
    migrate_if_possible_vm = environment.create_vm("possible", node, eviction_strategy=LIVE_MIGRATE_IF_POSSIBLE)
    original_boots = environment.wait_until_running(
        environment.create_vm("asked", node),
        migrate_if_possible_vm,
        environment.create_vm("stuck", node, unmigratable_reason="no disk"),
    )
    evictions = AuditLog(environment.cluster.audit_log)
    with environment.configure_kubevirt({}), environment.api:
        path = environment.create_maintenance(node)
        environment.wait_for_state(
            path, lambda maintenance: has_only_blocked_pod(maintenance, "NotMigratable", "no disk")
        )
        assert node not in {get_node_name(environment.get_vmis_by_name()[name]) for name in ("asked", "possible")}
        environment.make_migratable("stuck")
        environment.wait_for_state(path)
    assert environment.wait_until_running(*original_boots) == original_boots
    assert environment.list_shut_down_vms(evictions) == set()
    assert environment.list_product_objects() == []


@proves("DRN-10", "DRN-9")
def test_failed_migration_is_reported_and_retried_by_kubevirt(environment: KubeVirtEnvironment) -> None:
    """Check that KubeVirt retries a failed migration, which the status reports, and that the VM keeps running."""
    node, _ = environment.create_node(), environment.create_node()
    original_boots = environment.wait_until_running(environment.create_vm("unlucky", node))
    other_nodes = [node_name for node_name in list_node_names(environment) if node_name != node]
    environment.set_migration_failure(*other_nodes)
    evictions = AuditLog(environment.cluster.audit_log)
    path = environment.create_maintenance(node)
    environment.wait_for_state(
        path, lambda maintenance: has_only_blocked_pod(maintenance, "MigrationFailed", "failed once")
    )
    environment.set_migration_failure(*other_nodes, is_enabled=False)

    def is_retry_pending(maintenance: Object) -> bool:
        return has_only_blocked_pod(maintenance, "MigrationFailed", "is Pending")

    retrying_maintenance = environment.wait_with_heartbeats(
        node, lambda: environment.wait_for_state(path, is_retry_pending, timeout=5)
    )
    assert get_node_name(environment.get_vmis_by_name()["unlucky"]) == node

    ((_, message),) = get_blocking_details_by_pod(retrying_maintenance).values()
    environment.skip_migration_backoff(message.removesuffix(" is Pending").rpartition(" ")[2])
    environment.wait_for_state(path)
    assert environment.wait_until_running("unlucky") == original_boots
    assert environment.list_shut_down_vms(evictions) == set()
    assert environment.list_product_objects() == []


@proves("DRN-10")
def test_vm_always_has_pdb_while_kubevirt_is_reinstalled(environment: KubeVirtEnvironment) -> None:
    """Check that a VM always has a PodDisruptionBudget while KubeVirt is removed and reinstalled during a drain.

    The product creates a PDB and a migration while KubeVirt is removed. It deletes its PDB once KubeVirt has created
    one.
    """
    node, _ = environment.create_node(), environment.create_node()
    original_boots = environment.wait_until_running(environment.create_vm("between", node))
    evictions = AuditLog(environment.cluster.audit_log)
    budget_counts: list[int] = []

    def has_only_kubevirt_budgets(budgets: dict[str, Object]) -> bool:
        budget_counts.append(len(budgets))
        return bool(budgets) and not any(
            VMI_UID_LABEL in (budget["metadata"].get("labels") or {}) for budget in budgets.values()
        )

    with ThreadPoolExecutor(1) as thread, environment.remove_kubevirt():
        environment.send_tick()
        # The product creates no PodDisruptionBudget while KubeVirt's exists.
        assert environment.list_product_objects() == []
        for budget in environment.client.list(environment.budgets_path)["items"]:
            environment.client.delete(
                f"{environment.budgets_path}/{budget['metadata']['name']}", uid=budget["metadata"]["uid"]
            )
        environment.send_tick()
        assert environment.list_protected_vmis() == {"between"}
        path = environment.create_maintenance(node)
        environment.wait_for_state(path, lambda maintenance: has_only_blocked_pod(maintenance, "Migrating"))
        waiter = thread.submit(
            wait_for_collection,
            environment.client,
            environment.budgets_path,
            has_only_kubevirt_budgets,
            TIMEOUT_SECONDS,
        )
    environment.wait_with_ticks(lambda: environment.wait_for_state(path, timeout=3))
    assert environment.wait_until_running("between") == original_boots
    assert environment.list_shut_down_vms(evictions) == set()
    waiter.result()
    assert min(budget_counts) == 1
    assert len(environment.client.list(MIGRATIONS_PATH)["items"]) == 1
