"""Tests for `migrate` and `protect` with quotas, PodDisruptionBudgets and labels of other users (X-1).

Such objects must not make a drain shut down a VMI or wait forever.
"""

from __future__ import annotations

import pytest

from chaos.api_fault_proxy import NO_RESPONSE, Fault, FaultProxy
from functions import installs
from functions.event_data import require_data
from functions.round_robin import RoundRobin
from functions.virtualization import protect
from kube import install_lease
from kube.budgets import build_namespace_budgets_path
from kube.maintenance.groups import KUBEVIRT
from kube.paths import Object
from kube.virtualization.lookup import MAX_SINGLE_NODE_READS
from kube.virtualization.migration_claims import LEASE_PATH, REFUSALS_ANNOTATION
from kube.virtualization.virt_launcher_budgets import VMI_UID_LABEL
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_tick
from tests.functions.test_installs import OTHER_ACCOUNT, create_install_lease, delete_install_lease
from tests.functions.virtualization.conftest import VmiScenario
from tests.kubevirt import (
    MIGRATABLE,
    NOT_MIGRATABLE,
    build_migration,
    build_vmi,
    create_vmi_with_launcher,
    get_instances_path,
    get_migrations_path,
    patch_vmi_status,
)
from tests.proofs import proves
from tests.workload import Workload

pytestmark = pytest.mark.slow

QUOTA_RESOURCE_BY_STEP = {
    "migrate": "count/virtualmachineinstancemigrations.kubevirt.io",
    "protect": "count/poddisruptionbudgets.policy",
}


@proves("DRN-9")
def test_namespace_wide_pdb_causes_no_eviction_of_virt_launcher_pod(
    workload: Workload, vmi_scenario: VmiScenario, functions: Functions
) -> None:
    """Check that no virt-launcher pod is evicted even if a namespace-wide PDB would allow one eviction.

    Users often create such a PDB for all pods of a namespace. The PDB in this test requires one of two pods.
    """
    node = workload.take_node()
    for name in ("able", "other"):
        create_vmi_with_launcher(workload, build_vmi(name, node))
    workload.create_budget("namespace-wide", {"kubevirt.io": "virt-launcher"}, 1, expected_healthy=2)
    functions.invoke("protect", build_tick())

    pods_evicted_event = functions.invoke(
        "evict", functions.run_until_tainted(workload.create_maintenance(node, group=KUBEVIRT))
    )

    assert pods_evicted_event is not None
    assert require_data(pods_evicted_event)["evicted"] == []
    functions.invoke("protect", build_tick())
    wait_annotations = [
        budget["metadata"]["annotations"]
        for budget in vmi_scenario.administrator_client.list(build_namespace_budgets_path(workload.namespace))["items"][
            :2
        ]
    ]
    assert {annotations["nodemaintenance.dev/waits-reason"] for annotations in wait_annotations} == {"Migrating"}


@proves("DRN-9")
def test_vmi_gets_pdb_despite_pdb_with_its_label_in_other_namespace(
    workload: Workload, vmi_scenario: VmiScenario, functions: Functions
) -> None:
    """Check that `protect` creates a VMI's PDB even if a PDB in another namespace has the VMI's label.

    Any user who knows the VMI's uid can write that label.
    """
    vmi = vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node))
    other_namespace = workload.create_namespace()
    labels = {VMI_UID_LABEL: vmi["metadata"]["uid"]}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"no": "pod"}}}
    vmi_scenario.administrator_client.create(
        build_namespace_budgets_path(other_namespace), {"metadata": {"name": "z", "labels": labels}, "spec": spec}
    )

    functions.invoke("protect", build_tick())

    assert len(vmi_scenario.administrator_client.list(build_namespace_budgets_path(workload.namespace))["items"]) == 1
    workload.delete(f"{build_namespace_budgets_path(other_namespace)}/z")


@proves("DRN-9")
def test_tick_restores_edited_pdb_of_vmi(workload: Workload, vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that a tick restores a PDB that was edited so that it protects no pod."""
    vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node))
    functions.invoke("protect", build_tick())
    path = build_namespace_budgets_path(workload.namespace)
    (budget,) = vmi_scenario.administrator_client.list(path)["items"]
    edited_spec = {"minAvailable": 0, "selector": {"matchLabels": {"more": "labels"}}}
    vmi_scenario.administrator_client.patch(f"{path}/{budget['metadata']['name']}", {"spec": edited_spec})

    functions.invoke("protect", build_tick())

    (restored_budget,) = vmi_scenario.administrator_client.list(path)["items"]
    assert restored_budget["spec"] == budget["spec"]


def test_vmi_with_long_status_does_not_block_other_vmis(
    workload: Workload, vmi_scenario: VmiScenario, functions: Functions
) -> None:
    """Check that the other VMIs get their PDBs even if the status of one VMI is too long for an annotation.

    Any user who may change a VMI can also write its status.
    """
    verbose_vmi = vmi_scenario.create_vmi(build_vmi("a", vmi_scenario.node))
    vmi_scenario.administrator_client.create(get_migrations_path(workload.namespace), build_migration("by-hand", "a"))
    (migration,) = vmi_scenario.administrator_client.list(get_migrations_path(workload.namespace))["items"]
    patch_vmi_status(
        vmi_scenario.administrator_client,
        verbose_vmi,
        migrationState={"migrationUid": migration["metadata"]["uid"], "targetNode": "x" * 300_000},
    )
    vmi_scenario.create_vmi(build_vmi("b", vmi_scenario.node, migratable=NOT_MIGRATABLE))

    functions.invoke("protect", build_tick())

    assert len(vmi_scenario.administrator_client.list(build_namespace_budgets_path(workload.namespace))["items"]) == 2


@proves("DRN-8", "DRN-9")
@pytest.mark.parametrize("step", QUOTA_RESOURCE_BY_STEP)
def test_quota_in_one_namespace_does_not_affect_other_namespaces(
    vmi_scenario: VmiScenario, functions: Functions, step: str
) -> None:
    """Check that a quota in one namespace does not affect other namespaces.

    The API server rejects the objects with 403. The rejection is recorded in the Lease and in the PDB, the migration
    backs off, and another VMI gets the migration slot.
    """
    limited_namespace, other_namespace = sorted(
        [vmi_scenario.workload.namespace, vmi_scenario.workload.create_namespace()]
    )
    path = f"/api/v1/namespaces/{limited_namespace}/resourcequotas"
    vmi_scenario.administrator_client.create(
        path, {"metadata": {"name": "none"}, "spec": {"hard": {QUOTA_RESOURCE_BY_STEP[step]: "0"}}}
    )
    vmi_scenario.workload.wait_for_object(
        f"{path}/none", lambda quota: bool(quota and (quota.get("status") or {}).get("hard"))
    )
    for namespace in (limited_namespace, other_namespace):
        for name in ("a", "b"):
            vmi_scenario.administrator_client.create(get_instances_path(namespace), build_vmi(name, vmi_scenario.node))

    functions.invoke(step, build_tick())

    collection = {"migrate": get_migrations_path, "protect": build_namespace_budgets_path}[step](other_namespace)
    assert len(vmi_scenario.administrator_client.list(collection)["items"]) == 2
    if step == "migrate":
        refusals = vmi_scenario.administrator_client.get(LEASE_PATH)["metadata"]["annotations"][REFUSALS_ANNOTATION]
        assert refusals.count("forbidden") == 2
        functions.invoke("protect", build_tick())
        (budget, _) = vmi_scenario.administrator_client.list(build_namespace_budgets_path(limited_namespace))["items"]
        assert "forbidden" in budget["metadata"]["annotations"]["nodemaintenance.dev/waits-message"]


@proves("DRN-9", "X-2")
@pytest.mark.parametrize("fault", [Fault(500, "failed calling webhook"), NO_RESPONSE], ids=["error", "no response"])
def test_rejected_pdb_does_not_block_pdbs_of_other_vmis(
    vmi_scenario: VmiScenario, functions: Functions, fault_proxy: FaultProxy, proxied_functions: Functions, fault: Fault
) -> None:
    """Check that the PDBs of other VMIs are created even if one PDB cannot be created.

    The admission webhook for one namespace may be broken. The retried event starts with the next VMI, and the next tick
    creates the missing PDB.
    """
    for number in range(3):
        vmi_scenario.create_vmi(build_vmi(f"vm-{number}", vmi_scenario.node))
    path = build_namespace_budgets_path(vmi_scenario.workload.namespace)
    vmi_scenario.replace_taints()
    failing_requests = [f"create poddisruptionbudgets {number}" for number in (1, 4)]
    fault_proxy.inject(lambda request: fault if request in failing_requests else None)
    event = build_tick()
    for _ in range(2):
        assert proxied_functions.post("protect", event).status_code == 503
    fault_proxy.stop_faults()

    assert len(vmi_scenario.administrator_client.list(path)["items"]) == 2
    functions.invoke("protect", build_tick())
    assert len(vmi_scenario.administrator_client.list(path)["items"]) == 3


@proves("DRN-9", "X-2")
def test_vmi_after_hanging_writes_gets_pdb(
    vmi_scenario: VmiScenario,
    functions: Functions,
    fault_proxy: FaultProxy,
    proxied_functions: Functions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that a VMI gets its PDB even if the writes for the two VMIs before it hang.

    Each hanging write takes a whole pass. The next pass starts with the next VMI that has a pending write.
    """
    vmis_by_uid = {
        vmi["metadata"]["uid"]: vmi for vmi in (create_unmigratable_vmi(vmi_scenario, number) for number in range(8))
    }
    functions.invoke("protect", build_tick())
    *_, first_uid, second_uid, last_uid = ordered_uids = sorted(vmis_by_uid)
    for uid in (first_uid, second_uid):
        patch_vmi_status(vmi_scenario.administrator_client, vmis_by_uid[uid], conditions=[MIGRATABLE])
    path = build_namespace_budgets_path(vmi_scenario.workload.namespace)
    (budget,) = [
        existing
        for existing in vmi_scenario.administrator_client.list(path)["items"]
        if existing["metadata"]["labels"][VMI_UID_LABEL] == last_uid
    ]
    vmi_scenario.workload.delete(f"{path}/{budget['metadata']['name']}")
    fault_proxy.inject(lambda request: NO_RESPONSE if request.startswith("patch poddisruptionbudgets") else None)
    monkeypatch.setattr(protect, "TASK_ROTATION", RoundRobin(last_uid=ordered_uids[-1]))

    for _ in range(3):
        proxied_functions.post("protect", build_tick())
    fault_proxy.stop_faults()

    assert len(vmi_scenario.administrator_client.list(path)["items"]) == len(vmis_by_uid)


def create_unmigratable_vmi(vmi_scenario: VmiScenario, number: int) -> Object:
    """Create a VMI that cannot be migrated, so that `protect` annotates its PDB with the reason."""
    return vmi_scenario.create_vmi(build_vmi(f"vm-{number}", vmi_scenario.node, migratable=NOT_MIGRATABLE))


@proves("DRN-15")
def test_migrate_and_protect_write_nothing_while_other_install_holds_lease(
    vmi_scenario: VmiScenario, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `migrate` and `protect` write nothing while another install holds the install lease.

    Two installs with different settings would overwrite each other's annotations.
    """
    vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node))
    monkeypatch.setattr(installs, "INSTALL_LEASE_CACHE", installs.InstallLeaseCache())
    delete_install_lease(vmi_scenario.administrator_client)
    create_install_lease(vmi_scenario.administrator_client, OTHER_ACCOUNT)
    try:
        for step in QUOTA_RESOURCE_BY_STEP:
            functions.invoke(step, build_tick())
        assert (
            install_lease.parse_holder(vmi_scenario.administrator_client.get(install_lease.LEASE_PATH)) == OTHER_ACCOUNT
        )
        assert (
            vmi_scenario.map_migrations_to_vmis(),
            vmi_scenario.administrator_client.list(build_namespace_budgets_path(vmi_scenario.workload.namespace))[
                "items"
            ],
        ) == ({}, [])
    finally:
        delete_install_lease(vmi_scenario.administrator_client)


@proves("DRN-8")
def test_drained_node_is_found_among_many_nodes(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that a drained node is found even if there are more nodes than the step reads one by one.

    The step then lists the nodes instead, which needs the permission `list`.
    """
    names = [vmi_scenario.node, *(vmi_scenario.workload.take_node() for _ in range(MAX_SINGLE_NODE_READS))]
    path = get_instances_path(vmi_scenario.workload.namespace)
    vmi_scenario.administrator_client.gather_all(
        *(vmi_scenario.administrator_client.api.create(path, build_vmi(name, name)) for name in names)
    )

    functions.invoke("migrate", build_tick())

    assert set(vmi_scenario.map_migrations_to_vmis().values()) == {vmi_scenario.node}
