"""Tests of the forecast of a drain's effect on each virtual machine, and of the reports and warnings about it."""

from __future__ import annotations

from typing import Any

import pytest

from kube.paths import Object
from kube.virtualization.drain_forecast import (
    BLOCKS,
    MOVES,
    RESTARTS,
    STOPS,
    Hosted,
    launcher_of,
    moves,
    outlook,
    owner_of,
    reports,
    run_strategy,
    unheard,
    warnings,
)
from tests.kube.virtualization.test_evacuation import ABLE, UNABLE, vmi, vmim
from tests.proofs import proves


def machine(**spec: Any) -> Object:
    return {"metadata": {"namespace": "ns", "name": "m"}, "spec": spec}


def owned(name: str, **more: Any) -> Object:
    item = vmi(name, **more)
    item["metadata"]["ownerReferences"] = [{"kind": "VirtualMachine", "name": name}]
    return item


THEIRS = {"metadata": {"namespace": "kubevirt", "name": "kubevirt"}}
ALWAYS, MANUAL = machine(runStrategy="Always"), machine(runStrategy="Manual")


@proves("OSV-2", "OSV-3", "C15", "C16")
@pytest.mark.parametrize(
    ("strategy", "able", "owner", "drain"),
    [
        ("LiveMigrate", True, ALWAYS, MOVES),
        ("LiveMigrate", True, None, MOVES),
        ("LiveMigrate", False, ALWAYS, BLOCKS),
        (None, True, ALWAYS, RESTARTS),
        ("None", True, ALWAYS, RESTARTS),
        ("LiveMigrateIfPossible", True, ALWAYS, RESTARTS),
        ("External", True, ALWAYS, RESTARTS),
        (None, True, machine(runStrategy="Running"), RESTARTS),
        (None, True, machine(running=True), RESTARTS),
        (None, True, machine(runStrategy="RerunOnFailure"), RESTARTS),
        (None, True, MANUAL, STOPS),
        (None, True, machine(runStrategy="Once"), STOPS),
        (None, True, machine(running=False), STOPS),
        (None, True, None, STOPS),
    ],
)
def test_what_a_drain_does(strategy: str | None, able: bool, owner: Object | None, drain: str) -> None:
    """Forecast the effect if this project migrates VMIs."""
    item = vmi("x", strategy=strategy, conditions=[ABLE if able else UNABLE])
    assert outlook(item, owner).drain == drain


@proves("DRN-10")
@pytest.mark.parametrize(
    ("strategy", "able", "drain"),
    [
        ("LiveMigrate", True, MOVES),
        ("LiveMigrate", False, BLOCKS),
        ("LiveMigrateIfPossible", True, MOVES),
        ("LiveMigrateIfPossible", False, RESTARTS),
        ("External", True, BLOCKS),
        (None, True, RESTARTS),
    ],
)
def test_what_a_drain_does_where_kubevirt_moves_machines(strategy: str | None, able: bool, drain: str) -> None:
    """Forecast the effect if KubeVirt migrates VMIs, which supports two more strategies."""
    item = vmi("x", strategy=strategy, conditions=[ABLE if able else UNABLE])
    assert outlook(item, ALWAYS, THEIRS).drain == drain


@proves("DRN-10")
@pytest.mark.parametrize(("usual", "drain"), [("LiveMigrate", MOVES), ("External", BLOCKS), ("None", RESTARTS)])
def test_a_machine_that_says_no_strategy_has_the_one_of_kubevirt(usual: str, drain: str) -> None:
    """Use KubeVirt's default strategy for a VMI without its own, and name the strategy in the report."""
    theirs = {**THEIRS, "spec": {"configuration": {"evictionStrategy": usual}}}
    hosted = Hosted([owned("x", strategy=None), owned("y", strategy="None")], {("ns", "x"): ALWAYS}, kubevirt=theirs)
    silent, refusing = reports(hosted)

    assert (silent["drain"], silent["evictionStrategy"]) == (drain, usual)
    assert (refusing["drain"], refusing["evictionStrategy"]) == (STOPS, "None")


def test_what_has_no_owner_has_no_run_strategy() -> None:
    assert [run_strategy(None), run_strategy(machine()), run_strategy(machine(running=True))] == [
        "",
        "Halted",
        "Always",
    ]
    assert owner_of(vmi("x")) is None
    assert owner_of(owned("x")) == ("ns", "x")


def test_a_launcher_is_known_by_its_owner() -> None:
    pod: Object = {"metadata": {"namespace": "ns", "name": "p"}}
    assert launcher_of(pod) is None
    pod["metadata"]["ownerReferences"] = [{"kind": "VirtualMachineInstance", "name": "x"}]
    assert launcher_of(pod) == ("ns", "x")


@proves("OSV-2")
def test_a_report_says_strategies_condition_and_migration() -> None:
    """Report the VMIs sorted by name, with their strategies, condition and migration."""
    state = {"migrationUid": "u-1", "sourceNode": "a", "targetNode": "b"}
    moving, stuck = owned("x", migrationState=state), owned("w", conditions=[UNABLE])
    running, done = vmim("m-2", "x"), vmim("m-1", "x", phase="Succeeded")
    running["metadata"]["uid"], done["metadata"]["uid"] = "u-1", "u-0"
    hosted = Hosted([moving, stuck], {("ns", "x"): ALWAYS, ("ns", "w"): MANUAL}, [done, running])
    first, second = reports(hosted)
    assert first == {
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
    assert (second["name"], second["migratable"], second["unable"], second["drain"]) == ("x", True, "", MOVES)
    assert second["migration"] == {"name": "m-2", "target": "b", "phase": "Running"}


def test_a_migration_that_has_just_begun_says_nothing_of_the_one_before() -> None:
    """Ignore the target node of the previous migration, which the VMI's status still contains."""
    state = {"migrationUid": "u-0", "sourceNode": "c", "targetNode": "a"}
    begun = {"metadata": {"namespace": "ns", "name": "m-2", "uid": "u-1"}, "spec": {"vmiName": "x"}}
    (found,) = reports(Hosted([vmi("x", migrationState=state)], migrations=[begun]))
    assert found["migration"] == {"name": "m-2", "target": "", "phase": "Pending"}


def test_a_migration_of_the_machine_that_had_its_name_before_is_not_reported() -> None:
    """Report the VMI's own failed migration, not an unfinished one of an earlier VMI with the same name."""
    now_there, before, own = vmi("x"), vmim("old", "x"), vmim("own", "x", phase="Failed")
    now_there["metadata"]["creationTimestamp"] = own["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z"
    before["metadata"]["creationTimestamp"] = "2026-11-20T09:59:59Z"
    for listed, told in (([before], None), ([own, before], "own"), ([before, own], "own")):
        (found,) = reports(Hosted([now_there], migrations=listed))
        assert (found["migration"] or {}).get("name") == told


@proves("OSV-3")
def test_who_is_shut_down_and_who_blocks_is_warned_of() -> None:
    """Return one warning per effect with the first names; VMIs that migrate get a line that is not a warning."""
    stuck = vmi("stuck", conditions=[UNABLE])
    manual = owned("manual", strategy=None)
    plain = [owned(f"plain-{number}", strategy=None) for number in range(5)]
    owners = {("ns", "manual"): MANUAL, **{("ns", f"plain-{number}"): ALWAYS for number in range(5)}}
    found = reports(Hosted([vmi("live"), stuck, manual, vmi("own", strategy=None), *plain], owners))
    assert warnings(found) == [
        "1 virtual machine will hold the drain up: ns/stuck (PVC disk is not shared)",
        "2 virtual machines will be shut down and not started again: "
        "ns/manual (runStrategy Manual), ns/own (of no VirtualMachine)",
        "5 virtual machines will be shut down and started on another node: "
        "ns/plain-0, ns/plain-1, ns/plain-2 and 2 more",
    ]
    assert moves(found) == "1 virtual machine will move to another node without a break: ns/live"
    assert (warnings([]), moves([])) == ([], "")
    external = reports(Hosted([vmi("e", strategy="External")], kubevirt=THEIRS))
    assert warnings(external)[0].endswith(
        "ns/e (until the controller has moved it that evictionStrategy External leaves it to)"
    )


@proves("DRN-10", "C3")
def test_a_kubevirt_that_knows_another_taint_is_told_of_before() -> None:
    """Report a taint mismatch only if a VMI would migrate; this project itself supports both taints."""
    moving, usual = reports(Hosted([vmi("live")], kubevirt=THEIRS)), "kubevirt.io/drain"
    assert moving[0]["why"] == f"to another node, without a break, at the taint {usual}"
    assert unheard(THEIRS, moving, "medik8s.io/drain") == (
        "KubeVirt moves virtual machines at the taint kubevirt.io/drain, and this maintenance sets medik8s.io/drain: "
        "set spec.configuration.migrations.nodeDrainTaintKey of KubeVirt kubevirt/kubevirt to medik8s.io/drain before, "
        "unless its virt-api is asked about evictions, by which it hears as well"
    )
    told = {**THEIRS, "spec": {"configuration": {"migrations": {"nodeDrainTaintKey": "medik8s.io/drain"}}}}
    assert unheard(THEIRS, moving, usual) == unheard(told, moving, "medik8s.io/drain") == ""
    assert unheard(told, moving, usual) != ""
    assert unheard(None, moving, "medik8s.io/drain") == ""
    assert unheard(THEIRS, reports(Hosted([vmi("plain", strategy=None)])), "medik8s.io/drain") == ""
