"""Tests of the budgets of virt-launcher pods: which pods they cover, and what their annotations state."""

from __future__ import annotations

import pytest

from kube.budgets import CREATED_BY, LONGEST_WORDS, WAITS, plan, waits_for
from kube.paths import Object
from kube.virtualization import virt_launcher_budgets as budgets
from kube.virtualization.evacuation import LONGEST_MESSAGE, Wait
from kube.virtualization.vmis import is_kept
from tests.kube.virtualization.test_evacuation import vmi
from tests.proofs import proves

WAIT = Wait("a", "NotMigratable", "PVC disk is not shared")


def counted(budget: Object, healthy: int) -> Object:
    return {**budget, "status": {"currentHealthy": healthy, "desiredHealthy": 2, "disruptionsAllowed": 0}}


def launcher(uid: str) -> Object:
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"namespace": "ns", "name": "l", "uid": "p", "labels": labels}, "spec": {}, "status": status}


@proves("DRN-9")
def test_a_launcher_pod_is_blocked_in_the_words_of_its_budget() -> None:
    """Take the blocking reason from the budget, which a drain reads anyway, without a request for the VMI."""
    budget = counted(budgets.budget_of(vmi("x"), WAIT), 1)

    (blocked,) = plan([launcher("u-x")], [budget]).blocked

    assert (blocked.reason, blocked.message, blocked.budget) == ("NotMigratable", WAIT.message, "launcher-u-x")


@proves("DRN-9")
def test_without_words_it_says_what_the_machine_migrates_at() -> None:
    """Report that the VMI waits for a drain taint if the budget states no other reason."""
    budget = counted(budgets.budget_of(vmi("x"), None), 1)

    assert waits_for(budget) == ("Migrating", "its virtual machine migrates as soon as its node has a drain taint")
    assert waits_for({**budget, "metadata": {**budget["metadata"], "annotations": {}}}) is None
    assert [item.reason for item in plan([launcher("u-x")], [budget]).blocked] == ["Migrating"]


def test_words_are_written_where_they_differ() -> None:
    """Write no annotations that are already correct, and clear outdated ones."""
    said = budgets.budget_of(vmi("x"), WAIT)

    assert budgets.words_patch(said, WAIT) == {}
    assert budgets.told_of(said) == "a"
    cleared = budgets.words_patch(said, None)["metadata"]["annotations"]
    assert set(cleared.values()) == {""}


@proves("DRN-9", "X-1")
@pytest.mark.parametrize(
    ("uid", "selector"),
    [
        ("", {"matchLabels": {CREATED_BY: "u-x"}}),
        ("u-y", {"matchLabels": {CREATED_BY: "u-x"}}),
        ("u-x", {"matchLabels": {"kubevirt.io": "virt-launcher"}}),
        ("u-x", {}),
        ("u-x", None),
    ],
    ids=["nobody's", "another machine's", "over other pods", "over all pods", "over none"],
)
def test_the_words_of_a_budget_that_is_not_of_the_machine_are_not_believed(uid: str, selector: Object | None) -> None:
    """Ignore the annotations of other budgets: any user may create one, even for pods of other users."""
    owners = [{"kind": "VirtualMachineInstance", "name": "x", "uid": uid}] if uid else []
    forged = budgets.budget_of(vmi("x"), WAIT)
    forged["metadata"]["ownerReferences"], forged["spec"]["selector"] = owners, selector

    assert waits_for(forged) is None
    assert {item.reason for item in plan([launcher("u-x")], [counted(forged, 1)]).blocked} <= {"DisruptionBudget"}


@proves("X-1")
def test_of_long_words_of_a_budget_the_beginning_is_told() -> None:
    """Truncate long annotations of other clients, as a status lists hundreds of pods; keep our messages complete."""
    loud, most = budgets.budget_of(vmi("x"), WAIT), Wait("a", "NotMigratable", "x" * 300_000)
    ours = budgets.budget_of(vmi("x"), most)["metadata"]["annotations"]
    loud["metadata"]["annotations"] = {**ours, f"{WAITS}message": most.message}

    assert waits_for(loud) == ("NotMigratable", "x" * LONGEST_WORDS + "… (299400 more characters)")
    assert waits_for(budgets.budget_of(vmi("x"), most)) == ("NotMigratable", ours[f"{WAITS}message"])


@proves("DRN-9")
def test_who_has_a_budget() -> None:
    """Protect a VMI that requests migration and has not ended; the VMI owns its budget."""
    assert is_kept(vmi("x"))
    assert not is_kept(vmi("x", strategy=None))
    assert not is_kept(vmi("x", phase="Succeeded"))
    (owner,) = budgets.budget_of(vmi("x"), None)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("VirtualMachineInstance", "u-x")


@proves("DRN-10")
def test_of_two_budgets_the_one_that_says_what_the_pod_waits_for_is_told() -> None:
    """Report what the pod waits for, as an eviction cannot honour two budgets and the pod stays in any case."""
    ours = counted(budgets.budget_of(vmi("x"), WAIT), 1)
    theirs = counted(
        {**ours, "metadata": {"name": "a", "namespace": "ns"}, "spec": {**ours["spec"], "minAvailable": 0}}, 1
    )

    found = plan([launcher("u-x")], [theirs, ours])

    assert [(item.reason, item.message) for item in found.blocked] == [("NotMigratable", WAIT.message)]


def test_a_label_alone_makes_no_budget_ours() -> None:
    """Require the expected name and namespace too, because any user may set the label in their own namespace."""
    ours = budgets.budget_of(vmi("x"), None)
    forged = {**ours, "metadata": {**ours["metadata"], "name": "mine"}}
    elsewhere = {**ours, "metadata": {**ours["metadata"], "namespace": "other"}}

    assert budgets.ours([forged]) == {}
    assert budgets.ours([ours, elsewhere])[budgets.kept(vmi("x"))] is ours


def test_a_budget_that_was_edited_gets_its_spec_again() -> None:
    """Restore an edited spec, and ignore fields that the API server adds."""
    ours = budgets.budget_of(vmi("x"), None)
    edited = {**ours, "spec": {**ours["spec"], "minAvailable": 0}}
    added = {**ours, "spec": {**ours["spec"], "unhealthyPodEvictionPolicy": "IfHealthyBudget"}}

    assert budgets.spec_patch(edited, vmi("x")) == [{"op": "replace", "path": "/spec", "value": ours["spec"]}]
    assert budgets.spec_patch(ours, vmi("x")) == budgets.spec_patch(added, vmi("x")) == []


def test_words_of_any_length_can_be_written() -> None:
    """Truncate messages from a VMI's status, which its users may write, since the API server limits annotations."""
    told = budgets.said(Wait("a", "Migrating", "x" * 300_000))
    assert max(map(len, told.values())) < 2 * LONGEST_MESSAGE


@proves("DRN-10")
def test_a_budget_of_kubevirts_is_known_by_its_owner() -> None:
    """Recognize KubeVirt's budgets by the owner reference; ours and those of a user do not count."""
    ours = budgets.budget_of(vmi("x"), None)
    owner = ours["metadata"]["ownerReferences"]
    theirs = {"metadata": {"name": "theirs", "namespace": "ns", "ownerReferences": owner}}
    by_hand = {"metadata": {"name": "by-hand", "namespace": "ns"}}

    assert budgets.of_kubevirt([ours, by_hand, theirs]) == {("ns", "u-x"): theirs}
