"""Tests for drains with KubeVirt during which users add taints, delete objects or fix problems (DRN-8 to DRN-11)."""

from __future__ import annotations

import time

import pytest

from kube.virtualization.vmis import build_migrations_path
from localcluster.audit_log import AuditLog
from localcluster.waiting import wait_for_collection
from tests.chain.virtualization.environment import get_blocking_details_by_pod, get_boot, get_node_name, is_running
from tests.chain.virtualization.test_migrations import do_all_blocked_messages_contain, list_node_names
from tests.chain.virtualization.with_kubevirt.environment import KubeVirtEnvironment
from tests.chain.virtualization.with_kubevirt.test_passive import has_only_blocked_pod
from tests.machine_speed import is_below_scaled_limit
from tests.proofs import proves

pytestmark = pytest.mark.slow

UNMIGRATABLE_REASON = "the disk is not shared"


@proves("DRN-8", "DRN-10", "C3")
@pytest.mark.parametrize("taint_key", ["medik8s.io/drain", "kubevirt.io/drain"])
def test_kubevirt_migrates_vms_if_configured_taint_is_set_by_hand(
    environment: KubeVirtEnvironment, taint_key: str
) -> None:
    """Check that KubeVirt migrates the VMs of a node to which a user adds the taint in KubeVirt's configuration.

    The product creates neither migrations nor PodDisruptionBudgets.
    """
    node, _ = environment.create_node(), environment.create_node()
    original_boots = environment.wait_until_running(environment.create_vm("by-hand", node))
    with environment.configure_kubevirt({"migrations": {"nodeDrainTaintKey": taint_key}}):
        environment.set_taints(node, {"key": taint_key, "value": "whatever", "effect": "NoSchedule"})
        vmis_after_migration = environment.wait_for_vmis(lambda vmis: get_node_name(vmis["by-hand"]) not in ("", node))
    assert get_boot(vmis_after_migration["by-hand"]) == original_boots["by-hand"]
    environment.set_taints(node)
    assert environment.list_product_objects() == []


@proves("DRN-10", "DRN-11")
def test_vmi_without_vm_is_shut_down(environment: KubeVirtEnvironment) -> None:
    """Check that a drain completes and shuts down a VMI without a VirtualMachine, which KubeVirt leaves as Failed."""
    node, _ = environment.create_node(), environment.create_node()
    environment.wait_until_running(environment.create_vmi("ownerless", node))
    evictions = AuditLog(environment.cluster.audit_log)
    maintenance = environment.wait_for_state(environment.create_maintenance(node))
    assert get_blocking_details_by_pod(maintenance) == {}
    ended = environment.wait_for_vmis(lambda vmis: not is_running(vmis["ownerless"]))
    assert ended["ownerless"]["status"]["phase"] == "Failed"
    assert environment.list_shut_down_vms(evictions) == {"ownerless"}


@proves("DRN-10", "OSV-2")
def test_vm_that_becomes_migratable_is_migrated_by_kubevirt(environment: KubeVirtEnvironment) -> None:
    """Check that KubeVirt migrates a VM that becomes migratable, and that the drain ends soon after the migration."""
    node, _ = environment.create_node(), environment.create_node()
    environment.wait_until_running(environment.create_vm("late", node, unmigratable_reason=UNMIGRATABLE_REASON))
    path = environment.create_maintenance(node)
    environment.wait_for_state(
        path, lambda maintenance: do_all_blocked_messages_contain(maintenance, UNMIGRATABLE_REASON)
    )
    environment.make_migratable("late")
    started = time.monotonic()
    with environment.create_watcher() as watcher:
        environment.wait_for_state(path)
        ended = time.monotonic()
    kubevirt_seconds = watcher.first_seen_at[environment.vm_namespace, "late"] - started
    completed_at = environment.handler.completed_at[-1]
    print(
        f"KubeVirt started the migration after {kubevirt_seconds:.2f} s; "
        f"the drain ended {ended - completed_at:.2f} s after the virt-launcher pod completed"
    )
    assert is_below_scaled_limit(ended - completed_at, 0.5)


@proves("DRN-9", "DRN-10")
def test_deleted_migration_does_not_shut_down_vm(environment: KubeVirtEnvironment) -> None:
    """Check that deleting a migration does not shut down its VM; KubeVirt creates another migration within a minute.

    Until then, only virt-api prevents the eviction. KubeVirt's PodDisruptionBudget allows one disruption while the
    target's virt-launcher pod exists.
    """
    node, _ = environment.create_node(), environment.create_node()
    environment.wait_until_running(environment.create_vm("disturbed", node))
    evictions = AuditLog(environment.cluster.audit_log)
    with environment.api, environment.hold_migrations(*(name for name in list_node_names(environment) if name != node)):
        path = environment.create_maintenance(node)
        environment.delete_migration(environment.wait_for_running_migrations("disturbed")["disturbed"])
        wait_for_collection(
            environment.client, build_migrations_path(environment.vm_namespace), lambda migrations: not migrations
        )
        environment.send_tick()
        environment.wait_for_state(path, lambda maintenance: has_only_blocked_pod(maintenance, "Migrating"))
    assert environment.list_shut_down_vms(evictions) == set()
    environment.delete_vm("disturbed")
    environment.wait_for_state(path)
    assert environment.list_product_objects() == []


@proves("DRN-9", "DRN-10")
def test_vm_deleted_during_migration_does_not_delay_drain(environment: KubeVirtEnvironment) -> None:
    """Check that deleting a VM during its migration delays neither the drain nor other migrations."""
    node, _ = environment.create_node(), environment.create_node()
    original_boots = environment.wait_until_running(
        environment.create_vm("deleted", node), environment.create_vm("left", node)
    )
    evictions = AuditLog(environment.cluster.audit_log)
    with environment.hold_migrations(*(name for name in list_node_names(environment) if name != node)):
        path = environment.create_maintenance(node)
        environment.wait_for_running_migrations("deleted", "left")
        environment.delete_vm("deleted")
        environment.wait_for_vmis(lambda vmis: "deleted" not in vmis)
    environment.wait_for_state(path)
    assert environment.wait_until_running("left") == {"left": original_boots["left"]}
    assert environment.list_shut_down_vms(evictions) <= {"deleted"}
    assert environment.list_product_objects() == []
