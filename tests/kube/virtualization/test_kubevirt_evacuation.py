"""Tests of what a VMI on a drained node waits for if KubeVirt itself migrates it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kube.budgets import LAUNCHER_REASONS
from kube.nodes import Node
from kube.paths import Object
from kube.virtualization.evacuation import Wait
from kube.virtualization.kubevirt_evacuation import waits
from tests.kube.samples import node
from tests.kube.virtualization.test_evacuation import UNABLE, vmi, vmim
from tests.proofs import proves

OLD, NEW = "kubevirt.io/drain", "medik8s.io/drain"
ABOUT_TO = Wait("a", "Migrating", "KubeVirt is about to migrate it")
FIELD = "spec.configuration.migrations.nodeDrainTaintKey"


def kubevirt(key: str = "", strategy: str = "") -> Object:
    """Return a KubeVirt object with this taint key, and with this default eviction strategy."""
    told: Object = {"migrations": {"nodeDrainTaintKey": key}} if key else {}
    usual = {"evictionStrategy": strategy} if strategy else {}
    return {"metadata": {"namespace": "kubevirt", "name": "kv"}, "spec": {"configuration": {**told, **usual}}}


def drained(*keys: str) -> Mapping[str, Node]:
    """Return the drained nodes: node a with these taints."""
    return {"a": node(*((key, "", "NoSchedule") for key in keys))}


def one(item: Object, *migrations: Object, nodes: Mapping[str, Node] | None = None, key: str = "") -> Wait:
    """Return what the given VMI waits for."""
    (found,) = waits([item], list(migrations), nodes or drained(OLD), kubevirt(key)).values()
    return found


@proves("DRN-10")
@pytest.mark.parametrize(
    "item",
    [
        vmi("x", node="b"),
        vmi("x", strategy=None),
        vmi("x", strategy="None"),
        vmi("x", strategy="LiveMigrateIfPossible", conditions=[UNABLE]),
        vmi("x", phase="Succeeded"),
    ],
    ids=["elsewhere", "no strategy", "strategy None", "not possible", "ended"],
)
def test_who_waits_for_nothing(item: Object) -> None:
    """VMIs that KubeVirt does not migrate wait for nothing."""
    assert waits([item], [], drained(OLD), kubevirt()) == {}


@proves("DRN-10")
@pytest.mark.parametrize(
    ("keys", "known", "named"),
    [((OLD,), "", ""), ((NEW, OLD), "", ""), ((NEW,), NEW, ""), ((NEW,), "", NEW), ((OLD,), NEW, OLD)],
)
def test_a_taint_that_kubevirt_does_not_know_is_told_with_the_remedy(
    keys: tuple[str, ...], known: str, named: str
) -> None:
    """Report the field to set if the node lacks the only taint key that KubeVirt supports."""
    wait = one(vmi("x"), nodes=drained(*keys), key=known)

    if named:
        assert (wait.node, wait.reason) == ("a", "WaitsForKubeVirt")
        assert f"set {FIELD} of KubeVirt kubevirt/kv to {named}" in wait.message
        assert f"at the taint {known or OLD}, and node a has {named}" in wait.message
    else:
        assert wait == ABOUT_TO


@proves("DRN-10", "C14")
@pytest.mark.parametrize(
    ("strategy", "usual"),
    [("LiveMigrateIfPossible", ""), (None, "LiveMigrate"), (None, "LiveMigrateIfPossible")],
)
def test_whoever_kubevirt_keeps_waits_for_it(strategy: str | None, usual: str) -> None:
    """Wait for KubeVirt if the VMI's own or KubeVirt's default strategy makes KubeVirt protect and migrate the VMI."""
    told, item = kubevirt(strategy=usual), vmi("x", strategy=strategy)

    assert waits([item], [], drained(OLD), told) == {("ns", "x"): ABOUT_TO}
    assert waits([item], [], drained(NEW), told)["ns", "x"].reason == "WaitsForKubeVirt"
    assert waits([vmi("x", strategy="None")], [], drained(OLD), told) == {}


@proves("DRN-10", "C14")
@pytest.mark.parametrize("taint", [OLD, NEW])
def test_a_machine_that_others_move_waits_for_kubevirt_to_tell_them(taint: str) -> None:
    """Wait for an eviction request, whatever the taint: only that makes KubeVirt notify the external controller.

    The VMI's condition LiveMigratable does not matter, because that controller decides how it moves the VMI.
    """
    untold = one(vmi("x", strategy="External", conditions=[UNABLE]), nodes=drained(taint))
    told = one(vmi("x", strategy="External", evacuationNodeName="a"), nodes=drained(taint))

    assert untold.reason == "WaitsForKubeVirt"
    assert untold.message.endswith("migrate the virtual machine, or shut it down")
    assert told.reason == "Migrating"
    assert told.message == "the controller that evictionStrategy External leaves it to is about to move it"
    assert one(vmi("x", strategy="External"), vmim("m", "x")).message == "migration m is Running"


@proves("DRN-10")
def test_whom_an_eviction_has_asked_for_migrates_whatever_the_taint() -> None:
    """Expect a migration if KubeVirt has marked the VMI for evacuation from its current node; ignore an older mark."""
    assert one(vmi("x", evacuationNodeName="a"), nodes=drained(NEW)) == ABOUT_TO
    assert one(vmi("x", evacuationNodeName="b"), nodes=drained(NEW)).reason == "WaitsForKubeVirt"


@proves("DRN-10", "OSV-2")
def test_what_happens_and_what_blocks_is_told() -> None:
    """Report an unfinished migration first, whichever client created it."""
    assert one(vmi("x"), vmim("m", "x", phase="Scheduling")) == ("a", "Migrating", "migration m is Scheduling")
    unable = one(vmi("x", conditions=[UNABLE]), vmim("old", "x", phase="Succeeded"), vmim("m", "other"))
    assert unable.reason == "NotMigratable"
    assert unable.message.startswith("PVC disk is not shared: mend that")


def failed(name: str, node: str = "a", made: str = "") -> Object:
    """Return a failed migration of x that KubeVirt created for the drain of this node."""
    item = vmim(name, "x", phase="Failed")
    item["metadata"].update(annotations={"kubevirt.io/evacuationMigration": node}, creationTimestamp=made)
    return item


@proves("DRN-10", "DRN-9")
def test_a_migration_that_failed_is_told_until_the_next_one_begins() -> None:
    """Report the failures until the next migration starts, which may be long after KubeVirt has created it."""
    before = [failed("m1"), failed("m2"), failed("elsewhere", node="b"), vmim("by-hand", "x", phase="Failed")]
    again = one(vmi("x"), failed("m1"))
    assert again == ("a", "MigrationFailed", "its migration failed once; KubeVirt tries again")
    wait = one(vmi("x"), *before, vmim("m3", "x", phase="Pending"))
    assert wait.reason == "MigrationFailed"
    assert "failed 2 times" in wait.message
    assert wait.message.endswith("migration m3 is Pending")
    assert one(vmi("x"), *before, vmim("m3", "x")).reason == "Migrating"
    assert one(vmi("x"), failed("elsewhere", node="b"), vmim("m3", "x", phase="Pending")).reason == "Migrating"


@proves("DRN-10", "DRN-9")
def test_failures_before_a_success_are_told_no_more() -> None:
    """Report only the failures since the last success, after which the VMI returned to the node."""
    success = vmim("back", "x", phase="Succeeded")
    success["metadata"]["creationTimestamp"] = "2026-01-01T00:00:05Z"
    before, after = (failed(f"at-{second}", made=f"2026-01-01T00:00:0{second}Z") for second in (4, 6))

    assert one(vmi("x"), before, success) == ABOUT_TO
    assert one(vmi("x"), before, success, after).message == "its migration failed once; KubeVirt tries again"


@proves("DRN-10", "C3")
def test_an_old_failure_does_not_hide_that_kubevirt_has_to_be_asked() -> None:
    """Report that KubeVirt must be notified rather than a failure of an earlier drain.

    The eviction that notifies KubeVirt is sent only for this reason.
    """
    assert one(vmi("x"), failed("m1"), nodes=drained(NEW)).reason == "WaitsForKubeVirt"
    assert one(vmi("x", evacuationNodeName="a"), failed("m1"), nodes=drained(NEW)).reason == "MigrationFailed"
    pending = vmim("m2", "x", phase="Pending")
    assert one(vmi("x"), failed("m1"), pending, nodes=drained(NEW)).reason == "MigrationFailed"


@proves("DRN-10")
def test_a_migration_of_the_machine_that_had_its_name_before_says_nothing() -> None:
    """Ignore any migration of an earlier VMI with the same name."""
    now_there, failure, stale = vmi("x"), failed("m1"), vmim("m2", "x")
    own = vmim("m3", "x", phase="Scheduling")
    now_there["metadata"]["creationTimestamp"] = own["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z"
    for before in (failure, stale):
        before["metadata"]["creationTimestamp"] = "2026-11-20T09:59:59Z"

    assert one(now_there, failure, stale) == ABOUT_TO
    assert one(now_there, failure, stale, own).message == "migration m3 is Scheduling"


@proves("DRN-10")
def test_every_reason_is_one_that_a_budget_can_say() -> None:
    """Use only reasons that a drain accepts from a budget's annotations."""
    said = [one(vmi("x")), one(vmi("x"), vmim("m", "x")), one(vmi("x", conditions=[UNABLE]))]
    said += [one(vmi("x", strategy="External")), one(vmi("x", strategy="External", evacuationNodeName="a"))]
    assert {wait.reason for wait in said} <= set(LAUNCHER_REASONS)
