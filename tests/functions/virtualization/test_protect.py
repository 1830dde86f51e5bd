"""Tests for `protect` on a real API server with KubeVirt's CRDs and the disruption controller."""

from __future__ import annotations

import pytest

from eventing import events
from functions.event_data import require_data
from kube.budgets import CREATED_BY_LABEL, MIGRATION_UID_LABEL, build_namespace_budgets_path
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.paths import Object, build_events_path
from kube.virtualization.vmis import API_VERSION, VM_KIND
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_tick
from tests.functions.virtualization.conftest import VmiScenario
from tests.functions.virtualization.test_migrate import install_kubevirt
from tests.kubevirt import (
    MIGRATABLE,
    NOT_MIGRATABLE,
    build_vmi,
    create_vmi_with_launcher,
    get_instances_path,
    patch_vmi_status,
)
from tests.proofs import proves
from tests.workload import Workload, build_pod

GARBAGE_COLLECTION_TIMEOUT_SECONDS = 60.0
"""Timeout for garbage collection, since the collector discovers new kinds only every 30 s."""


def get_pdbs_by_name(vmi_scenario: VmiScenario) -> dict[str, Object]:
    budgets = vmi_scenario.administrator_client.list(build_namespace_budgets_path(vmi_scenario.workload.namespace))[
        "items"
    ]
    return {budget["metadata"]["name"]: budget for budget in budgets}


@proves("DRN-9", "DRN-7", "X-3a")
def test_live_migrate_vmi_has_pdb_until_its_deletion(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that each VMI with `LiveMigrate`, on any node, has one PDB, which is garbage-collected with the VMI."""
    vmi = vmi_scenario.create_vmi(build_vmi("able", "another-node"))
    vmi_scenario.create_vmi(build_vmi("plain", "another-node", strategy=None))
    for _ in range(2):
        assert functions.invoke("protect", build_tick()) is None
        assert list(get_pdbs_by_name(vmi_scenario)) == [f"launcher-{vmi['metadata']['uid']}"]

    vmi_scenario.administrator_client.delete(
        f"{get_instances_path(vmi_scenario.workload.namespace)}/able", uid=vmi["metadata"]["uid"]
    )
    vmi_scenario.workload.wait_for_collection(
        build_namespace_budgets_path(vmi_scenario.workload.namespace),
        lambda budgets: not budgets,
        GARBAGE_COLLECTION_TIMEOUT_SECONDS,
    )


@proves("DRN-9", "OSV-2")
def test_reason_of_blocked_virt_launcher_pod_is_reported(
    workload: Workload, functions: Functions, vmi_scenario: VmiScenario
) -> None:
    """Check that the reason of a blocked virt-launcher pod states whether its VMI cannot migrate or is migrating.

    The virt-launcher pod is never evicted.
    """
    node = workload.take_node()
    vmi = create_vmi_with_launcher(workload, build_vmi("late", node, migratable=NOT_MIGRATABLE))
    functions.invoke("protect", build_tick())
    wait_until_pdb_counts_pod(vmi_scenario, vmi)
    functions.run_until_tainted(workload.create_maintenance(node, group=KUBEVIRT))

    assert run_protect_and_evict(functions) == (
        "NotMigratable",
        "no disk: correct this, or shut down virtual machine late",
    )
    assert [event["reason"] for event in list_vmi_events(vmi_scenario, vmi)] == ["NotMigratable"]

    patch_vmi_status(vmi_scenario.administrator_client, vmi, conditions=[MIGRATABLE])
    functions.invoke("migrate", build_tick())
    reason, message = run_protect_and_evict(functions)
    assert (reason, message.rpartition(" ")[2]) == ("Migrating", "Pending")
    assert functions.invoke("protect", build_tick()) is None


def run_protect_and_evict(functions: Functions) -> tuple[str, str]:
    """Run `protect` and then `evict`; return the reason and the message of the only blocked pod."""
    reply = functions.invoke("protect", build_tick())
    assert reply is not None
    assert reply.get_type() == events.VIRT_LAUNCHERS_WAIT_CHANGED
    pods_evicted_event = functions.invoke("evict", reply)
    assert pods_evicted_event is not None
    (blocked_pod,) = require_data(pods_evicted_event)["blocked"]
    assert require_data(pods_evicted_event)["evicted"] == []
    return blocked_pod["reason"], blocked_pod["message"]


@proves("OSV-3")
def test_unknown_run_strategy_is_recorded_in_event(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that a VirtualMachine with an unknown run strategy gets an Event if a drain shuts it down.

    A VirtualMachine with a known run strategy, or on a node that is not drained, gets no Event.
    """
    for name, strategy, node in (
        ("odd", "Sometimes", vmi_scenario.node),
        ("manual", "Manual", vmi_scenario.node),
        ("elsewhere", "Sometimes", "another-node"),
    ):
        create_vm_and_vmi(vmi_scenario, name, strategy, node)

    for _ in range(2):
        assert functions.invoke("protect", build_tick()) is None

    events_path = build_events_path(vmi_scenario.workload.namespace)
    found = [
        event
        for event in vmi_scenario.administrator_client.list(events_path)["items"]
        if event["reason"] == "UnknownRunStrategy"
    ]
    assert [(event["involvedObject"]["kind"], event["involvedObject"]["name"]) for event in found] == [
        ("VirtualMachine", "odd")
    ]
    assert 'spec.runStrategy is "Sometimes", which is not a run strategy' in found[0]["message"]


def create_vm_and_vmi(vmi_scenario: VmiScenario, name: str, run_strategy: str, node: str) -> None:
    """Create a VirtualMachine with this run strategy, and its VMI without an eviction strategy on the node."""
    spec = {"runStrategy": run_strategy, "template": {"spec": {"domain": {"devices": {}}}}}
    vm = vmi_scenario.administrator_client.create(
        f"/apis/{API_VERSION}/namespaces/{vmi_scenario.workload.namespace}/virtualmachines",
        {"apiVersion": API_VERSION, "kind": VM_KIND, "metadata": {"name": name}, "spec": spec},
    )
    body = build_vmi(name, node, strategy=None)
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": API_VERSION, "kind": VM_KIND, "name": name, "uid": vm["metadata"]["uid"], "controller": True}
    ]
    vmi_scenario.create_vmi(body)


def wait_until_pdb_counts_pod(vmi_scenario: VmiScenario, vmi: Object) -> None:
    """Wait until the disruption controller has counted the VMI's pod in the PDB's status."""
    path = f"{build_namespace_budgets_path(vmi_scenario.workload.namespace)}/launcher-{vmi['metadata']['uid']}"
    vmi_scenario.workload.wait_for_object(
        path, lambda budget: bool(budget and budget.get("status", {}).get("currentHealthy") == 1)
    )


@proves("DRN-10")
def test_protect_deletes_pdb_after_kubevirt_pdb_exists(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that `protect` deletes its PDB only after KubeVirt's PDB exists, and does not recreate it.

    If the VMI had no PDB in between, a drain would shut down the VMI.
    """
    vmi = vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node))
    uid = vmi["metadata"]["uid"]
    functions.invoke("protect", build_tick())
    install_kubevirt(vmi_scenario)
    functions.invoke("protect", build_tick())
    assert list(get_pdbs_by_name(vmi_scenario)) == [f"launcher-{uid}"]

    selector = {"matchLabels": {"kubevirt.io/created-by": uid}}
    owner = {"apiVersion": vmi["apiVersion"], "kind": vmi["kind"], "name": "able", "uid": uid}
    metadata = {"name": "theirs", "ownerReferences": [owner]}
    kubevirt_budget = {"metadata": metadata, "spec": {"minAvailable": 1, "selector": selector}}
    vmi_scenario.administrator_client.create(
        build_namespace_budgets_path(vmi_scenario.workload.namespace), kubevirt_budget
    )
    for _ in range(2):
        functions.invoke("protect", build_tick())
        assert list(get_pdbs_by_name(vmi_scenario)) == ["theirs"]


@proves("DRN-10", "C3")
@pytest.mark.parametrize(
    ("strategy", "remedy"),
    [
        ("LiveMigrate", "nodeDrainTaintKey"),
        ("LiveMigrateIfPossible", "nodeDrainTaintKey"),
        ("External", "migrate the virtual machine, or shut it down"),
    ],
)
def test_eviction_requests_evacuation_if_kubevirt_ignores_drain_taint(
    workload: Workload, vmi_scenario: VmiScenario, functions: Functions, strategy: str, remedy: str
) -> None:
    """Check that `evict` requests a VMI's evacuation with an eviction if KubeVirt does not react to the drain taint.

    `evict` sends one eviction per event, which the API server rejects because of the PDB. The blocked pod's message
    contains the remedy.
    """
    node = workload.take_node()
    vmi = create_vmi_with_launcher(workload, build_vmi("unheard", node, strategy=strategy))
    owner = {"apiVersion": vmi["apiVersion"], "kind": vmi["kind"], "name": "unheard", "uid": vmi["metadata"]["uid"]}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {CREATED_BY_LABEL: vmi["metadata"]["uid"]}}}
    body = {"metadata": {"name": "theirs", "ownerReferences": [owner]}, "spec": spec}
    vmi_scenario.administrator_client.create(build_namespace_budgets_path(workload.namespace), body)
    path = f"{build_namespace_budgets_path(workload.namespace)}/theirs"
    workload.wait_for_object(path, lambda budget: bool(budget and budget.get("status", {}).get("currentHealthy") == 1))
    install_kubevirt(vmi_scenario)
    evictions = AuditLog(workload.local_cluster.audit_log)
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node, group=MEDIK8S))

    reason, message = run_protect_and_evict(functions)
    assert reason == "WaitsForKubeVirt"
    assert remedy in message
    assert [entry["responseStatus"]["code"] for entry in evictions.list_evictions()] == [429]
    pods_evicted_event = functions.invoke("evict", tainted_event)
    assert pods_evicted_event is not None
    assert [blocked_pod["reason"] for blocked_pod in require_data(pods_evicted_event)["blocked"]] == [
        "WaitsForKubeVirt"
    ]
    assert [entry["responseStatus"]["code"] for entry in evictions.list_evictions()] == [429, 429]
    assert functions.invoke("protect", build_tick()) is None


@proves("DRN-9", "DRN-8")
def test_target_pod_of_migration_is_not_evicted(
    workload: Workload, vmi_scenario: VmiScenario, functions: Functions
) -> None:
    """Check that the target pod of a migration is not evicted, because the migration would fail.

    The pod has the phase Pending, so the API server would evict it without checking a PDB.
    """
    node = workload.take_node()
    vmi = vmi_scenario.create_vmi(build_vmi("moving", "another-node"))
    labels = {
        "kubevirt.io": "virt-launcher",
        CREATED_BY_LABEL: vmi["metadata"]["uid"],
        MIGRATION_UID_LABEL: "uid-of-the-migration",
    }
    body = build_pod(node, "target", labels=labels)
    body["metadata"]["annotations"] = {"pod-ready.stage.kwok.x-k8s.io/delay": "1h"}
    (target,) = workload.create_pods(workload.namespace, [body], ready=False)
    functions.invoke("protect", build_tick())

    pods_evicted_event = functions.invoke(
        "evict", functions.run_until_tainted(workload.create_maintenance(node, group=KUBEVIRT))
    )
    assert pods_evicted_event is not None
    assert require_data(pods_evicted_event)["evicted"] == []
    (blocked,) = require_data(pods_evicted_event)["blocked"]
    assert (blocked["uid"], blocked["reason"]) == (target["metadata"]["uid"], "Migrating")


@proves("DRN-9", "DRN-7")
def test_pdb_of_vmi_is_deleted_when_eviction_strategy_is_removed(
    vmi_scenario: VmiScenario, functions: Functions
) -> None:
    """Check that a VMI's PDB is deleted when a user removes `LiveMigrate` from the VMI, which can then be evicted."""
    vmi = vmi_scenario.create_vmi(build_vmi("fickle", "another-node"))
    functions.invoke("protect", build_tick())
    assert len(get_pdbs_by_name(vmi_scenario)) == 1
    vmi_scenario.administrator_client.patch(
        f"{get_instances_path(vmi_scenario.workload.namespace)}/fickle", {"spec": {"evictionStrategy": None}}
    )
    functions.invoke("protect", build_tick())
    assert get_pdbs_by_name(vmi_scenario) == {}
    assert vmi["metadata"]["name"] == "fickle"


def list_vmi_events(vmi_scenario: VmiScenario, vmi: Object) -> list[Object]:
    """Return the Kubernetes Events about a VMI."""
    events = vmi_scenario.administrator_client.list(build_events_path(vmi_scenario.workload.namespace))["items"]
    return [event for event in events if event["involvedObject"].get("uid") == vmi["metadata"]["uid"]]
