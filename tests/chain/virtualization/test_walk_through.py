"""Tests for the documented walk-through: a drain with the oldest API group restarts a VM on another node (DRN-16)."""

from __future__ import annotations

from kube.maintenance.groups import KUBEVIRT_ALPHA
from kube.paths import Object
from localcluster.simulators.kubevirt import get_phase
from tests.chain.virtualization.environment import VirtualizationEnvironment, get_boot, get_node_name, is_running
from tests.proofs import proves


@proves("DRN-11", "DRN-16", "DRN-16a", "OSV-4", "C17")
def test_vm_without_eviction_strategy_restarts_on_other_node(environment: VirtualizationEnvironment) -> None:
    """Check that a VM without an eviction strategy is shut down, and then Scheduling and Running on another node.

    The VMI's fields and the columns that kubectl prints match the documentation.
    """
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("testvm", node, run_strategy="Halted", eviction_strategy="")
    environment.wait_until_stopped(name)
    assert environment.get_vmis_by_name() == {}
    environment.start_vm(name)
    original_boots = environment.wait_until_running(name)
    started_vmi = environment.get_vmis_by_name()[name]
    assert (started_vmi["status"]["phase"], started_vmi["status"]["nodeName"]) == ("Running", node)
    assert started_vmi["status"]["migrationMethod"] == "BlockMigration"
    (interface,) = started_vmi["status"]["interfaces"]
    assert all(interface[field] for field in ("ipAddress", "mac", "name"))
    column_names = (
        environment.cluster.kubectl("get", "vmis", "-n", environment.vm_namespace).stdout.splitlines()[0].split()
    )
    assert column_names[:5] == ["NAME", "AGE", "PHASE", "IP", "NODENAME"]

    observed_phases_and_nodes: list[tuple[str, str]] = []
    path = environment.create_maintenance(node, api_version=KUBEVIRT_ALPHA.api_version)

    def is_running_on_other_node(vmis: dict[str, Object]) -> bool:
        observed_phases_and_nodes.append((get_phase(vmis.get(name, {})), get_node_name(vmis.get(name, {}))))
        return is_running(vmis.get(name)) and get_node_name(vmis[name]) != node

    vmis_after_drain = environment.wait_for_vmis(is_running_on_other_node)
    assert get_boot(vmis_after_drain[name]) != original_boots[name]
    scheduling_index = observed_phases_and_nodes.index(("Scheduling", ""))
    assert ("Running", node) not in observed_phases_and_nodes[scheduling_index:]
    assert environment.count_migrations_by_vmi() == {}
    environment.wait_for_state(path)


@proves("DRN-11")
def test_vmi_without_vm_is_not_recreated(environment: VirtualizationEnvironment) -> None:
    """Check that a drain does not recreate a VMI without a VirtualMachine, as with a pod without a controller."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vmi("ownerless", node)
    environment.wait_until_running(name)

    environment.wait_for_state(environment.create_maintenance(node))
    environment.wait_for_vmis(lambda vmis: name not in vmis)
    environment.send_tick()
    assert environment.get_vmis_by_name() == {}


@proves("DRN-9", "DRN-7")
def test_drain_completes_after_eviction_strategy_is_removed(environment: VirtualizationEnvironment) -> None:
    """Check that a drain that an unmigratable VMI blocks completes once the VMI's eviction strategy is removed."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("given-up", node, unmigratable_reason="the disk is not shared")
    original_boots = environment.wait_until_running(name)
    path = environment.create_maintenance(node)
    environment.wait_for_state(path, lambda maintenance: bool((maintenance.get("status") or {}).get("blockedPods")))
    environment.client.patch(f"{environment.vmis_path}/{name}", {"spec": {"evictionStrategy": None}})
    environment.wait_for_state(path)
    environment.wait_until_rebooted(original_boots, name)
