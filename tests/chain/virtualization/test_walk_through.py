"""Tests of the documentation's walk-through: start a VM, drain its node with the oldest API, run elsewhere (DRN-16)."""

from __future__ import annotations

from kube.maintenance.groups import KUBEVIRT_ALPHA
from kube.paths import Object
from tests.chain.virtualization.environment import VirtualizationEnvironment, get_boot, get_node_name, is_running
from tests.fake_kubevirt_base import get_phase
from tests.proofs import proves


@proves("DRN-11", "DRN-16", "DRN-16a", "OSV-4", "C17")
def test_vm_without_eviction_strategy_restarts_on_other_node(environment: VirtualizationEnvironment) -> None:
    """Drains shut down a VM without an eviction strategy; it is Scheduling, then Running on another node.

    The printed columns and the VMI's fields are those of the documentation.
    """
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("testvm", node, run_strategy="Halted", eviction_strategy="")
    environment.await_stopped(name)
    assert environment.get_vmis_by_name() == {}
    environment.start_vm(name)
    before = environment.await_running(name)
    first = environment.get_vmis_by_name()[name]
    assert (first["status"]["phase"], first["status"]["nodeName"]) == ("Running", node)
    assert first["status"]["migrationMethod"] == "BlockMigration"
    (interface,) = first["status"]["interfaces"]
    assert all(interface[field] for field in ("ipAddress", "mac", "name"))
    heads = environment.cluster.kubectl("get", "vmis", "-n", environment.vm_namespace).stdout.splitlines()[0].split()
    assert heads[:5] == ["NAME", "AGE", "PHASE", "IP", "NODENAME"]

    observed: list[tuple[str, str]] = []
    path = environment.create_maintenance(node, api_version=KUBEVIRT_ALPHA.api_version)

    def is_elsewhere(vmis: dict[str, Object]) -> bool:
        observed.append((get_phase(vmis.get(name, {})), get_node_name(vmis.get(name, {}))))
        return is_running(vmis.get(name)) and get_node_name(vmis[name]) != node

    after = environment.await_vmis(is_elsewhere)
    assert get_boot(after[name]) != before[name]
    scheduling = observed.index(("Scheduling", ""))
    assert ("Running", node) not in observed[scheduling:]
    assert environment.count_migrations_by_vmi() == {}
    environment.await_state(path)


@proves("DRN-11")
def test_vmi_without_vm_is_not_recreated(environment: VirtualizationEnvironment) -> None:
    """VMIs without a VM are not created again after a drain, like pods without a controller."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vmi("ownerless", node)
    environment.await_running(name)

    environment.await_state(environment.create_maintenance(node))
    environment.await_vmis(lambda vmis: name not in vmis)
    environment.send_tick()
    assert environment.get_vmis_by_name() == {}


@proves("DRN-9", "DRN-7")
def test_removed_eviction_strategy_lets_drain_complete(environment: VirtualizationEnvironment) -> None:
    """Removing the eviction strategy of a VMI that cannot migrate lets the drain shut it down and complete."""
    node, _ = environment.create_node(), environment.create_node()
    name = environment.create_vm("given-up", node, unmigratable_reason="the disk is not shared")
    before = environment.await_running(name)
    path = environment.create_maintenance(node)
    environment.await_state(path, lambda item: bool((item.get("status") or {}).get("blockedPods")))
    environment.client.patch(f"{environment.vmis_path}/{name}", {"spec": {"evictionStrategy": None}})
    environment.await_state(path)
    environment.await_rebooted(before, name)
