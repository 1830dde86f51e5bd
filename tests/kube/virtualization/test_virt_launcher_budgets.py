"""Tests for the PDBs of virt-launcher pods, whose annotations state why a VMI blocks the drain."""

from __future__ import annotations

import pytest

from kube.budgets import (
    CREATED_BY_LABEL,
    MAX_WAIT_MESSAGE_CHARACTERS,
    WAIT_ANNOTATION_PREFIX,
    parse_wait_reason,
)
from kube.evictions.planner import plan_evictions
from kube.paths import Object
from kube.virtualization import virt_launcher_budgets as budgets
from kube.virtualization.evacuation import MAX_MESSAGE_CHARACTERS, Wait
from kube.virtualization.vmis import requires_migration_before_eviction
from tests.kube.virtualization.test_evacuation import make_vmi
from tests.proofs import proves

WAIT = Wait("a", "NotMigratable", "PVC disk is not shared")


def add_budget_status(budget: Object, healthy: int) -> Object:
    return {**budget, "status": {"currentHealthy": healthy, "desiredHealthy": 2, "disruptionsAllowed": 0}}


def make_virt_launcher_pod(uid: str) -> Object:
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"namespace": "ns", "name": "l", "uid": "p", "labels": labels}, "spec": {}, "status": status}


@proves("DRN-9")
def test_virt_launcher_pod_is_blocked_with_reason_in_pdb() -> None:
    """Check that the reason of a blocked virt-launcher pod comes from its PDB, so that the drain reads no VMI."""
    budget = add_budget_status(budgets.build_budget(make_vmi("x"), WAIT), 1)

    (blocked,) = plan_evictions([make_virt_launcher_pod("u-x")], [budget]).blocked

    assert (blocked.reason, blocked.message, blocked.budget) == ("NotMigratable", WAIT.message, "launcher-u-x")


@proves("DRN-9")
def test_vmi_waits_for_drain_taint_if_pdb_states_no_reason() -> None:
    """Check that a VMI is reported to wait for a drain taint if its PDB states no other reason."""
    budget = add_budget_status(budgets.build_budget(make_vmi("x"), None), 1)

    assert parse_wait_reason(budget) == ("Migrating", "its virtual machine migrates once the node has a drain taint")
    assert parse_wait_reason({**budget, "metadata": {**budget["metadata"], "annotations": {}}}) is None
    assert [
        blocked_pod.reason for blocked_pod in plan_evictions([make_virt_launcher_pod("u-x")], [budget]).blocked
    ] == ["Migrating"]


def test_pdb_annotations_are_written_only_if_they_differ() -> None:
    """Check that a PDB's correct annotations are not written, and that outdated annotations are removed."""
    budget = budgets.build_budget(make_vmi("x"), WAIT)

    assert budgets.build_annotations_patch(budget, WAIT) == {}
    assert budgets.get_annotated_node(budget) == "a"
    cleared_annotations = budgets.build_annotations_patch(budget, None)["metadata"]["annotations"]
    assert set(cleared_annotations.values()) == {""}


@proves("DRN-9", "X-1")
@pytest.mark.parametrize(
    ("owner_uid", "selector"),
    [
        ("", {"matchLabels": {CREATED_BY_LABEL: "u-x"}}),
        ("u-y", {"matchLabels": {CREATED_BY_LABEL: "u-x"}}),
        ("u-x", {"matchLabels": {"kubevirt.io": "virt-launcher"}}),
        ("u-x", {}),
        ("u-x", None),
    ],
    ids=["no owner", "owned by another VMI", "selects other pods", "selects all pods", "selects no pods"],
)
def test_annotations_of_other_pdbs_are_ignored(owner_uid: str, selector: Object | None) -> None:
    """Check that annotations of other PDBs are ignored, since any user may create a PDB for pods of other users."""
    owners = [{"kind": "VirtualMachineInstance", "name": "x", "uid": owner_uid}] if owner_uid else []
    foreign_budget = budgets.build_budget(make_vmi("x"), WAIT)
    foreign_budget["metadata"]["ownerReferences"], foreign_budget["spec"]["selector"] = owners, selector

    assert parse_wait_reason(foreign_budget) is None
    assert {
        blocked_pod.reason
        for blocked_pod in plan_evictions(
            [make_virt_launcher_pod("u-x")], [add_budget_status(foreign_budget, 1)]
        ).blocked
    } <= {"DisruptionBudget"}


@proves("X-1")
def test_long_pdb_annotation_is_truncated() -> None:
    """Check that long annotations of other clients are truncated, because a status may list hundreds of pods."""
    budget, long_wait = budgets.build_budget(make_vmi("x"), WAIT), Wait("a", "NotMigratable", "x" * 300_000)
    annotations = budgets.build_budget(make_vmi("x"), long_wait)["metadata"]["annotations"]
    budget["metadata"]["annotations"] = {**annotations, f"{WAIT_ANNOTATION_PREFIX}message": long_wait.message}

    assert parse_wait_reason(budget) == (
        "NotMigratable",
        "x" * MAX_WAIT_MESSAGE_CHARACTERS + "… (299400 more characters)",
    )
    assert parse_wait_reason(budgets.build_budget(make_vmi("x"), long_wait)) == (
        "NotMigratable",
        annotations[f"{WAIT_ANNOTATION_PREFIX}message"],
    )


@proves("DRN-9")
def test_only_vmi_with_migration_strategy_gets_pdb() -> None:
    """Check that an active VMI with a migration strategy gets a PDB, which has the VMI as its owner."""
    assert requires_migration_before_eviction(make_vmi("x"))
    assert not requires_migration_before_eviction(make_vmi("x", strategy=None))
    assert not requires_migration_before_eviction(make_vmi("x", phase="Succeeded"))
    (owner,) = budgets.build_budget(make_vmi("x"), None)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("VirtualMachineInstance", "u-x")


@proves("DRN-10")
def test_reason_in_pdb_takes_precedence_over_multiple_pdbs() -> None:
    """Check that the reason in a PDB's annotations is reported, and not that two PDBs select the pod."""
    own_budget = add_budget_status(budgets.build_budget(make_vmi("x"), WAIT), 1)
    foreign_budget = add_budget_status(
        {**own_budget, "metadata": {"name": "a", "namespace": "ns"}, "spec": {**own_budget["spec"], "minAvailable": 0}},
        1,
    )

    plan = plan_evictions([make_virt_launcher_pod("u-x")], [foreign_budget, own_budget])

    assert [(blocked_pod.reason, blocked_pod.message) for blocked_pod in plan.blocked] == [
        ("NotMigratable", WAIT.message)
    ]


def test_pdb_of_protect_is_recognized_by_label_name_and_namespace() -> None:
    """Check that a PDB of `protect` is recognized by label, name and namespace, since any user may set the label."""
    own_budget = budgets.build_budget(make_vmi("x"), None)
    with_other_name = {**own_budget, "metadata": {**own_budget["metadata"], "name": "mine"}}
    in_other_namespace = {**own_budget, "metadata": {**own_budget["metadata"], "namespace": "other"}}

    assert budgets.index_own_budgets([with_other_name]) == {}
    assert (
        budgets.index_own_budgets([own_budget, in_other_namespace])[budgets.get_vmi_uid_key(make_vmi("x"))]
        is own_budget
    )


def test_edited_pdb_spec_is_restored() -> None:
    """Check that an edited PDB spec is restored, and that fields that the API server added are ignored."""
    own_budget = budgets.build_budget(make_vmi("x"), None)
    edited_budget = {**own_budget, "spec": {**own_budget["spec"], "minAvailable": 0}}
    budget_with_default = {
        **own_budget,
        "spec": {**own_budget["spec"], "unhealthyPodEvictionPolicy": "IfHealthyBudget"},
    }

    assert budgets.build_spec_patch(edited_budget, make_vmi("x")) == [
        {"op": "replace", "path": "/spec", "value": own_budget["spec"]}
    ]
    assert (
        budgets.build_spec_patch(own_budget, make_vmi("x"))
        == budgets.build_spec_patch(budget_with_default, make_vmi("x"))
        == []
    )


def test_long_vmi_messages_fit_into_pdb_annotations() -> None:
    """Check that messages from a VMI's status, which users may write, are truncated to fit into PDB annotations."""
    annotations = budgets.build_wait_annotations(Wait("a", "Migrating", "x" * 300_000))
    assert max(map(len, annotations.values())) < 2 * MAX_MESSAGE_CHARACTERS


@proves("DRN-10")
def test_pdb_of_kubevirt_is_recognized_by_owner_reference() -> None:
    """Check that a PDB of KubeVirt is recognized by its owner reference, which no PDB of the product or a user has."""
    own_budget = budgets.build_budget(make_vmi("x"), None)
    owner = own_budget["metadata"]["ownerReferences"]
    kubevirt_budget = {"metadata": {"name": "theirs", "namespace": "ns", "ownerReferences": owner}}
    manual_budget = {"metadata": {"name": "by-hand", "namespace": "ns"}}

    assert budgets.index_kubevirt_budgets([own_budget, manual_budget, kubevirt_budget]) == {
        ("ns", "u-x"): kubevirt_budget
    }
