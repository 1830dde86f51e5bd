"""Tests for the forecast of a drain's effect on each virtual machine, and for the reports and warnings about it."""

from __future__ import annotations

from typing import Any

import pytest

from kube.paths import Object
from kube.virtualization.drain_forecast import (
    BLOCKS,
    MOVES,
    RESTARTS,
    STOPS,
    VmiSnapshot,
    build_vmi_reports,
    build_warnings,
    describe_migrating_vms,
    explain_taint_mismatch,
    explain_unknown_strategy,
    forecast_drain,
    get_launched_vmi_key,
    get_owner_vm_key,
    get_run_strategy,
)
from tests.kube.virtualization.test_evacuation import (
    MIGRATABLE_CONDITION,
    UNMIGRATABLE_CONDITION,
    make_migration,
    make_vmi,
)
from tests.proofs import proves


def make_vm(**spec: Any) -> Object:
    return {"metadata": {"namespace": "ns", "name": "m"}, "spec": spec}


def make_owned_vmi(name: str, **status: Any) -> Object:
    vmi = make_vmi(name, **status)
    vmi["metadata"]["ownerReferences"] = [{"kind": "VirtualMachine", "name": name}]
    return vmi


KUBEVIRT = {"metadata": {"namespace": "kubevirt", "name": "kubevirt"}}
ALWAYS_VM, MANUAL_VM = make_vm(runStrategy="Always"), make_vm(runStrategy="Manual")


@proves("OSV-2", "OSV-3", "C15", "C16")
@pytest.mark.parametrize(
    ("strategy", "is_migratable", "owner_vm", "expected_effect"),
    [
        ("LiveMigrate", True, ALWAYS_VM, MOVES),
        ("LiveMigrate", True, None, MOVES),
        ("LiveMigrate", False, ALWAYS_VM, BLOCKS),
        (None, True, ALWAYS_VM, RESTARTS),
        ("None", True, ALWAYS_VM, RESTARTS),
        ("LiveMigrateIfPossible", True, ALWAYS_VM, RESTARTS),
        ("External", True, ALWAYS_VM, RESTARTS),
        (None, True, make_vm(runStrategy="Running"), RESTARTS),
        (None, True, make_vm(running=True), RESTARTS),
        (None, True, make_vm(runStrategy="RerunOnFailure"), RESTARTS),
        (None, True, MANUAL_VM, STOPS),
        (None, True, make_vm(runStrategy="Once"), STOPS),
        (None, True, make_vm(running=False), STOPS),
        (None, True, None, STOPS),
    ],
)
def test_effect_of_drain_on_vmi_is_forecast(
    strategy: str | None, is_migratable: bool, owner_vm: Object | None, expected_effect: str
) -> None:
    """Check the forecast of a drain's effect on each VMI if the product migrates VMIs."""
    vmi = make_vmi(
        "x", strategy=strategy, conditions=[MIGRATABLE_CONDITION if is_migratable else UNMIGRATABLE_CONDITION]
    )
    assert forecast_drain(vmi, owner_vm).effect == expected_effect


@proves("DRN-10")
@pytest.mark.parametrize(
    ("strategy", "is_migratable", "expected_effect"),
    [
        ("LiveMigrate", True, MOVES),
        ("LiveMigrate", False, BLOCKS),
        ("LiveMigrateIfPossible", True, MOVES),
        ("LiveMigrateIfPossible", False, RESTARTS),
        ("External", True, BLOCKS),
        (None, True, RESTARTS),
    ],
)
def test_effect_of_drain_on_vmi_is_forecast_for_kubevirt(
    strategy: str | None, is_migratable: bool, expected_effect: str
) -> None:
    """Check the forecast of a drain's effect if KubeVirt migrates VMIs, which supports two more eviction strategies."""
    vmi = make_vmi(
        "x", strategy=strategy, conditions=[MIGRATABLE_CONDITION if is_migratable else UNMIGRATABLE_CONDITION]
    )
    assert forecast_drain(vmi, ALWAYS_VM, KUBEVIRT).effect == expected_effect


@proves("DRN-10")
@pytest.mark.parametrize(
    ("default_strategy", "expected_effect"), [("LiveMigrate", MOVES), ("External", BLOCKS), ("None", RESTARTS)]
)
def test_default_eviction_strategy_of_kubevirt_is_used(default_strategy: str, expected_effect: str) -> None:
    """Check that a VMI without an eviction strategy has KubeVirt's default strategy, which the report contains."""
    kubevirt = {**KUBEVIRT, "spec": {"configuration": {"evictionStrategy": default_strategy}}}
    snapshot = VmiSnapshot(
        [make_owned_vmi("x", strategy=None), make_owned_vmi("y", strategy="None")],
        {("ns", "x"): ALWAYS_VM},
        kubevirt=kubevirt,
    )
    default_report, none_report = build_vmi_reports(snapshot)

    assert (default_report["drain"], default_report["evictionStrategy"]) == (expected_effect, default_strategy)
    assert (none_report["drain"], none_report["evictionStrategy"]) == (STOPS, "None")


def test_unknown_run_strategy_is_explained_in_forecast() -> None:
    """OSV-3: The forecast explains a run strategy only if KubeVirt does not know it."""
    known = ("Always", "Running", "RerunOnFailure", "Manual", "Halted", "Once", "WaitAsReceiver")

    assert [explain_unknown_strategy(make_vm(runStrategy=strategy), "node-1") for strategy in known] == [""] * 7
    assert explain_unknown_strategy(make_vm(), "node-1") == ""
    assert 'spec.runStrategy is "Sometimes"' in explain_unknown_strategy(make_vm(runStrategy="Sometimes"), "node-1")


def test_run_strategy_is_read_from_owner_of_vmi() -> None:
    assert [get_run_strategy(None), get_run_strategy(make_vm()), get_run_strategy(make_vm(running=True))] == [
        "",
        "Halted",
        "Always",
    ]
    assert get_owner_vm_key(make_vmi("x")) is None
    assert get_owner_vm_key(make_owned_vmi("x")) == ("ns", "x")


def test_virt_launcher_pod_is_recognized_by_its_owner_reference() -> None:
    pod: Object = {"metadata": {"namespace": "ns", "name": "p"}}
    assert get_launched_vmi_key(pod) is None
    pod["metadata"]["ownerReferences"] = [{"kind": "VirtualMachineInstance", "name": "x"}]
    assert get_launched_vmi_key(pod) == ("ns", "x")


@proves("OSV-2")
def test_vmi_report_has_strategies_condition_and_migration() -> None:
    """Check that the report lists VMIs by name, with their strategies, condition LiveMigratable and migration."""
    state = {"migrationUid": "u-1", "sourceNode": "a", "targetNode": "b"}
    migrating_vmi, unmigratable_vmi = (
        make_owned_vmi("x", migrationState=state),
        make_owned_vmi("w", conditions=[UNMIGRATABLE_CONDITION]),
    )
    running_migration, finished_migration = make_migration("m-2", "x"), make_migration("m-1", "x", phase="Succeeded")
    running_migration["metadata"]["uid"], finished_migration["metadata"]["uid"] = "u-1", "u-0"
    snapshot = VmiSnapshot(
        [migrating_vmi, unmigratable_vmi],
        {("ns", "x"): ALWAYS_VM, ("ns", "w"): MANUAL_VM},
        [finished_migration, running_migration],
    )
    first_report, second_report = build_vmi_reports(snapshot)
    assert first_report == {
        "namespace": "ns",
        "name": "w",
        "phase": "Running",
        "evictionStrategy": "LiveMigrate",
        "runStrategy": "Manual",
        "migratable": False,
        "unable": "PVC disk is not shared",
        "drain": BLOCKS,
        "why": "until it can be migrated, or is shut down",
        "migration": None,
    }
    assert (second_report["name"], second_report["migratable"], second_report["unable"], second_report["drain"]) == (
        "x",
        True,
        "",
        MOVES,
    )
    assert second_report["migration"] == {"name": "m-2", "target": "b", "phase": "Running"}


def test_report_of_new_migration_has_no_target_node_of_previous_migration() -> None:
    """Check that a new migration is reported without the previous migration's target node in the VMI's status."""
    state = {"migrationUid": "u-0", "sourceNode": "c", "targetNode": "a"}
    new_migration = {"metadata": {"namespace": "ns", "name": "m-2", "uid": "u-1"}, "spec": {"vmiName": "x"}}
    (report,) = build_vmi_reports(VmiSnapshot([make_vmi("x", migrationState=state)], migrations=[new_migration]))
    assert report["migration"] == {"name": "m-2", "target": "", "phase": "Pending"}


def test_migration_of_earlier_vmi_with_same_name_is_not_reported() -> None:
    """Check that the VMI's failed migration is reported, not an unfinished migration of an earlier VMI of that name."""
    vmi, earlier_migration, own_migration = (
        make_vmi("x"),
        make_migration("old", "x"),
        make_migration("own", "x", phase="Failed"),
    )
    vmi["metadata"]["creationTimestamp"] = own_migration["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z"
    earlier_migration["metadata"]["creationTimestamp"] = "2026-11-20T09:59:59Z"
    for migrations, expected_name in (
        ([earlier_migration], None),
        ([own_migration, earlier_migration], "own"),
        ([earlier_migration, own_migration], "own"),
    ):
        (report,) = build_vmi_reports(VmiSnapshot([vmi], migrations=migrations))
        assert (report["migration"] or {}).get("name") == expected_name


@proves("OSV-3")
def test_drain_warnings_name_affected_vms() -> None:
    """Check that each effect causes one warning that names the first VMs, and that migrating VMIs cause no warning."""
    unmigratable_vmi = make_vmi("stuck", conditions=[UNMIGRATABLE_CONDITION])
    manual_vmi = make_owned_vmi("manual", strategy=None)
    vmis_without_strategy = [make_owned_vmi(f"plain-{number}", strategy=None) for number in range(5)]
    owners = {("ns", "manual"): MANUAL_VM, **{("ns", f"plain-{number}"): ALWAYS_VM for number in range(5)}}
    reports = build_vmi_reports(
        VmiSnapshot(
            [make_vmi("live"), unmigratable_vmi, manual_vmi, make_vmi("own", strategy=None), *vmis_without_strategy],
            owners,
        )
    )
    assert build_warnings(reports) == [
        "1 virtual machine will block the drain: ns/stuck (PVC disk is not shared)",
        "2 virtual machines will be shut down and not started again: "
        "ns/manual (runStrategy Manual), ns/own (no VirtualMachine)",
        "5 virtual machines will be shut down and started on another node: "
        "ns/plain-0, ns/plain-1, ns/plain-2 and 2 more",
    ]
    assert (
        describe_migrating_vms(reports) == "1 virtual machine will move to another node without interruption: ns/live"
    )
    assert (build_warnings([]), describe_migrating_vms([])) == ([], "")
    external_reports = build_vmi_reports(VmiSnapshot([make_vmi("e", strategy="External")], kubevirt=KUBEVIRT))
    assert build_warnings(external_reports)[0].endswith(
        "ns/e (until the controller for evictionStrategy External has moved it)"
    )


@proves("DRN-10", "C3")
def test_unsupported_taint_is_reported_before_drain() -> None:
    """Check that a taint that KubeVirt does not support is reported only if KubeVirt would migrate a VMI."""
    reports, default_taint = build_vmi_reports(VmiSnapshot([make_vmi("live")], kubevirt=KUBEVIRT)), "kubevirt.io/drain"
    assert reports[0]["why"] == f"to another node, without interruption, once the node has the taint {default_taint}"
    assert explain_taint_mismatch(KUBEVIRT, reports, "medik8s.io/drain") == (
        "KubeVirt migrates virtual machines from nodes with the taint kubevirt.io/drain, "
        "but this maintenance sets medik8s.io/drain: "
        "first set spec.configuration.migrations.nodeDrainTaintKey of KubeVirt kubevirt/kubevirt to medik8s.io/drain, "
        "unless the API server calls virt-api for evictions, which also starts the migration"
    )
    kubevirt_with_medik8s_taint = {
        **KUBEVIRT,
        "spec": {"configuration": {"migrations": {"nodeDrainTaintKey": "medik8s.io/drain"}}},
    }
    assert (
        explain_taint_mismatch(KUBEVIRT, reports, default_taint)
        == explain_taint_mismatch(kubevirt_with_medik8s_taint, reports, "medik8s.io/drain")
        == ""
    )
    assert explain_taint_mismatch(kubevirt_with_medik8s_taint, reports, default_taint) != ""
    assert explain_taint_mismatch(None, reports, "medik8s.io/drain") == ""
    assert (
        explain_taint_mismatch(
            KUBEVIRT, build_vmi_reports(VmiSnapshot([make_vmi("plain", strategy=None)])), "medik8s.io/drain"
        )
        == ""
    )
