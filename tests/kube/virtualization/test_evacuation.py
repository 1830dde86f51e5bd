"""Tests of which VMI migrates next, and of what each other VMI on a drained node waits for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kube.paths import Object
from kube.times import timestamp
from kube.virtualization.evacuation import Evacuation, Slots, evacuation, next_name
from kube.virtualization.vmis import is_drained, migration_body
from kube.virtualization.migration_claims import LEASE, Claim, Refusal
from tests.proofs import proves

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
ABLE: Object = {"type": "LiveMigratable", "status": "True"}
UNABLE: Object = {"type": "LiveMigratable", "status": "False", "message": "PVC disk is not shared"}


def vmi(name: str, node: str = "a", strategy: str | None = "LiveMigrate", **status: Any) -> Object:
    spec = {"evictionStrategy": strategy} if strategy else {}
    known = {"phase": "Running", "nodeName": node, "conditions": [ABLE], **status}
    return {"metadata": {"namespace": "ns", "name": name, "uid": f"u-{name}"}, "spec": spec, "status": known}


def vmim(name: str, of: str, phase: str = "Running", ended: datetime = NOW) -> Object:
    status = {"phase": phase, "migrationState": {"endTimestamp": timestamp(ended)}}
    metadata = {"namespace": "ns", "name": name, "uid": f"u-{name}"}
    return {"metadata": metadata, "spec": {"vmiName": of}, "status": status}


def judged(vmis: list[Object], migrations: list[Object] | None = None, **more: Any) -> Evacuation:
    options: Any = {"drained": {"a"}, "claimed": {}, "slots": Slots(), "now": NOW, **more}
    return evacuation(vmis, migrations or [], **options)


def reasons(found: Evacuation) -> dict[str, str]:
    return {name: wait.reason for (_, name), wait in found.waits.items()}


@proves("DRN-7", "DRN-8", "C14")
@pytest.mark.parametrize(
    "item",
    [
        vmi("x", node="b"),
        vmi("x", strategy=None),
        vmi("x", strategy="None"),
        vmi("x", strategy="LiveMigration"),
        vmi("x", phase="Succeeded"),
    ],
    ids=["elsewhere", "no strategy", "strategy None", "name of the gate", "ended"],
)
def test_who_does_not_migrate(item: Object) -> None:
    """VMIs that do not migrate wait for nothing: their pods are evicted, or they are not on the node."""
    assert judged([item]) == Evacuation()


@proves("DRN-9", "OSV-2")
def test_one_that_does_not_run_is_told_with_the_remedy() -> None:
    """Report why the VMI cannot migrate, because its pod is protected and blocks the drain."""
    (wait,) = judged([vmi("x", phase="Scheduling")]).waits.values()
    assert wait.reason == "NotMigratable"
    assert wait.message == "it is Scheduling, and only what is Running can migrate: wait, or shut down x"


def test_migrations_of_machines_that_are_gone_hold_no_slot() -> None:
    """Ignore the migrations of deleted VMIs, which never end if the component that runs migrations is down."""
    left = [vmim(f"m-{number}", f"gone-{number}", "Pending") for number in range(5)]
    assert list(judged([vmi("x")], left).due) == ["evacuation-u-x-1"]


def test_a_migration_of_the_machine_that_had_its_name_before_is_not_its_own() -> None:
    """Ignore a migration that is older than the VMI: it belongs to an earlier VMI of the same name.

    Such a migration may never end, and must not hide the VMI's own one.
    """
    now_there, before, own = vmi("x"), vmim("evacuation-old-1", "x"), vmim("evacuation-u-x-1", "x")
    now_there["metadata"]["creationTimestamp"] = own["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z"
    before["metadata"]["creationTimestamp"] = "2026-11-20T09:59:59Z"
    assert list(judged([now_there], [before]).due) == ["evacuation-u-x-1"]
    for listed in ([before, own], [own, before]):
        found = judged([now_there], listed)
        assert (found.due, found.waits["ns", "x"].message) == ({}, "migration evacuation-u-x-1 is Running")


def test_a_failure_dated_by_a_clock_ahead_is_tried_again() -> None:
    """Use the migration's creation time, set by the API server, if its end time lies in the future."""
    failed = vmim("evacuation-u-x-1", "x", "Failed", NOW + timedelta(days=400))
    failed["metadata"]["creationTimestamp"] = timestamp(NOW - timedelta(minutes=1))
    assert list(judged([vmi("x")], [failed]).due) == ["evacuation-u-x-2"]


@pytest.mark.parametrize(("name", "of", "space"), [("1", "x", "other"), ("1", "y", "ns"), ("9" * 205, "x", "ns")])
def test_what_only_has_a_name_like_ours_delays_nobody(name: str, of: str, space: str) -> None:
    """Ignore a similar name of another VMI or namespace, or with a number that is too large for ours."""
    forged = vmim(f"evacuation-u-x-{name}", of, "Failed")
    forged["metadata"]["namespace"] = space
    assert list(judged([vmi("x")], [forged]).due) == ["evacuation-u-x-1"]


def test_what_was_refused_rests_and_then_comes_behind_all_others() -> None:
    """Report a refused migration during its backoff, and then try it last, so that it takes no other VMI's slot."""
    known = [vmi("a"), vmi("b"), vmi("c")]
    later, over = NOW + timedelta(seconds=10), NOW - timedelta(seconds=1)
    rests = judged(known, refused={"evacuation-u-a-1": Refusal(1, later, "quota")})
    again = judged(known, refused={"evacuation-u-a-1": Refusal(1, over, "quota")})

    assert list(rests.due) == ["evacuation-u-b-1", "evacuation-u-c-1"]
    assert rests.waits["ns", "a"].reason == "MigrationFailed"
    assert rests.waits["ns", "a"].message.endswith(": quota")
    assert (list(again.due), again.waits["ns", "a"].reason) == (list(rests.due), "WaitsForSlot")


@proves("DRN-8", "OSV-2")
def test_one_that_may_is_due_under_a_name_of_its_own() -> None:
    """Build the name from the VMI's uid and a number, so that two passes create the migration only once."""
    found = judged([vmi("x")])

    assert list(found.due) == ["evacuation-u-x-1"]
    assert reasons(found) == {"x": "Migrating"}
    assert migration_body("evacuation-u-x-1", vmi("x"))["spec"] == {"vmiName": "x"}


@proves("DRN-8")
def test_an_unfinished_migration_is_the_only_one() -> None:
    """Wait for an unfinished migration, whichever client created it, and report its target from the VMI's status."""
    moving = vmi("x", migrationState={"migrationUid": "u-by-hand", "targetNode": "b"})
    found = judged([moving], [vmim("by-hand", "x")])

    assert found.due == {}
    assert found.waits[("ns", "x")].message == "migration by-hand to node b is Running"
    (later,) = judged([moving], [vmim("second", "x", phase="Pending")]).waits.values()
    assert later.message == "migration second is Pending"


@proves("OSV-2", "DRN-8")
@pytest.mark.parametrize(
    ("conditions", "said"),
    [([UNABLE], "PVC disk is not shared"), ([], "it has no condition LiveMigratable yet")],
    ids=["told", "untold"],
)
def test_one_that_cannot_migrate_says_why_and_what_helps(conditions: list[Object], said: str) -> None:
    """Report the condition and the remedy in one sentence."""
    found = judged([vmi("x", conditions=conditions)])

    assert found.due == {}
    assert reasons(found) == {"x": "NotMigratable"}
    assert found.waits[("ns", "x")].message == f"{said}: mend that, or shut down virtual machine x"


@proves("DRN-8")
@pytest.mark.parametrize(
    ("slots", "due", "message"),
    [
        (Slots(5, 2), 2, "2 of 2 migrations run from node a"),
        (Slots(1, 2), 1, "1 of 1 migrations run"),
        (Slots(3, 3), 3, "3 of 3 migrations run"),
    ],
)
def test_slots_bound_what_runs_at_once(slots: Slots, due: int, message: str) -> None:
    """Respect the limits of the cluster and of the node; a waiting VMI reports which of them is reached."""
    found = judged([vmi(f"x{number}") for number in range(4)], slots=slots)

    assert len(found.due) == due
    assert {wait.message for wait in found.waits.values() if wait.reason == "WaitsForSlot"} == {message}


@proves("DRN-8")
def test_what_runs_elsewhere_takes_a_slot_of_the_cluster() -> None:
    """Count migrations from other nodes against the cluster's limit: five of them leave no slot."""
    others = [vmi(f"o{number}", node="b") for number in range(5)]
    running = [vmim(f"m{number}", f"o{number}") for number in range(5)]

    assert judged([vmi("x"), *others], running).due == {}
    assert len(judged([vmi("x"), vmi("y"), vmi("z"), *others], running[:1]).due) == 2


CLAIMED = {"evacuation-u-z-1": Claim("event-1", "a", NOW + LEASE)}


@proves("DRN-8", "X-2")
def test_what_an_attempt_claimed_is_due_to_itself_alone() -> None:
    """Continue with a claim if the same event is delivered again; other events leave the slot and the VMI to it."""
    own = judged([vmi("x"), vmi("z")], claimed=CLAIMED, slots=Slots(1, 1), attempt="event-1")
    other = judged([vmi("x"), vmi("z")], claimed=CLAIMED, slots=Slots(1, 1), attempt="event-2")

    assert (list(own.due), own.held) == (["evacuation-u-z-1"], {})
    assert (other.due, other.held) == ({}, CLAIMED)
    for found in (own, other):
        assert reasons(found) == {"x": "WaitsForSlot", "z": "Migrating"}


@proves("DRN-8")
@pytest.mark.parametrize("gone", [[], [vmi("z", conditions=[UNABLE])], [vmi("z", node="b")]], ids=len)
def test_a_claim_keeps_its_slot_whatever_becomes_of_its_machine(gone: list[Object]) -> None:
    """Keep the slot, because the attempt that claimed it may still create the migration from an older read."""
    found = judged([vmi("x"), *gone], claimed=CLAIMED, slots=Slots(5, 1))

    assert found.due == {}
    assert reasons(found)["x"] == "WaitsForSlot"


@proves("DRN-8")
def test_a_claim_that_is_over_is_everybodys() -> None:
    """Release the slot of an expired claim, under which no migration is created any more."""
    found = judged([vmi("z")], claimed=CLAIMED, now=NOW + LEASE, attempt="event-2")

    assert (list(found.due), found.held) == (["evacuation-u-z-1"], {})


@proves("DRN-8")
def test_what_is_created_is_counted_once() -> None:
    """Count a created migration as running, and not also as claimed."""
    found = judged([vmi("z"), vmi("x")], [vmim("evacuation-u-z-1", "z")], claimed=CLAIMED, slots=Slots(5, 2))

    assert list(found.due) == ["evacuation-u-x-1"]


@proves("DRN-9")
@pytest.mark.parametrize(("failures", "pause"), [(1, 10), (2, 20), (3, 40), (9, 300)])
def test_a_failed_migration_is_tried_again_after_a_pause_that_grows(failures: int, pause: int) -> None:
    """Double the backoff after each failure, up to five minutes, and report the time of the retry."""
    failed = [vmim(f"evacuation-u-x-{number}", "x", "Failed") for number in range(1, failures + 1)]
    early, late = NOW + timedelta(seconds=pause - 1), NOW + timedelta(seconds=pause)

    waiting = judged([vmi("x")], failed, now=early)
    assert reasons(waiting) == {"x": "MigrationFailed"}
    assert timestamp(late) in waiting.waits[("ns", "x")].message
    assert list(judged([vmi("x")], failed, now=late).due) == [f"evacuation-u-x-{failures + 1}"]


@proves("DRN-9")
def test_failures_before_a_success_make_no_pause_longer() -> None:
    """Count only the failures since the last success, because the earlier ones belong to another drain."""
    ends = ("Failed", "Failed", "Failed", "Succeeded", "Failed")
    ended = [vmim(f"evacuation-u-x-{number}", "x", phase) for number, phase in enumerate(ends, 1)]
    early, late = NOW + timedelta(seconds=9), NOW + timedelta(seconds=10)

    assert "failed once, last evacuation-u-x-5" in judged([vmi("x")], ended, now=early).waits["ns", "x"].message
    assert list(judged([vmi("x")], ended, now=late).due) == ["evacuation-u-x-6"]
    assert list(judged([vmi("x")], ended[:4]).due) == ["evacuation-u-x-5"]


class Counted(list[Object]):
    """List of migrations that counts how often it is iterated."""

    passes = 0

    def __iter__(self) -> Iterator[Object]:
        self.passes += 1
        return super().__iter__()


def test_what_a_look_costs_grows_with_machines_and_with_migrations_and_not_with_their_product() -> None:
    """Iterate over the migrations equally often for any number of VMIs; some VMIs have hundreds of failures a day."""
    few, many = (Counted([vmim(f"evacuation-u-x0-{number}", "x0", "Failed") for number in (1, 2)]) for _ in range(2))
    judged([vmi("x0")], few)
    judged([vmi(f"x{number}") for number in range(20)], many)
    assert few.passes == many.passes


def test_of_finished_migrations_of_ours_the_newest_are_not_outdated() -> None:
    """Keep the six newest finished migrations, as six failures give the longest backoff.

    Running migrations, and those that other clients created, are not ours to delete.
    """
    failed = [vmim(f"evacuation-u-x-{number}", "x", "Failed") for number in range(1, 13)]
    others = [vmim(f"by-hand-{number}", "x", "Failed") for number in range(9)]
    left = failed[5:11]
    found = judged([vmi("x")], [*reversed(failed[:11]), *others, vmim("evacuation-u-x-12", "x"), vmim("m", "y")])

    assert found.outdated == failed[:5]
    assert judged([vmi("x")], left).outdated == []
    assert judged([vmi("x")], left).waits["ns", "x"].message.startswith("its migration failed 6 times or more, last")
    assert list(judged([vmi("x")], left, now=NOW + timedelta(minutes=5)).due) == ["evacuation-u-x-12"]
    assert judged([vmi("x")], left, now=NOW + timedelta(seconds=299)).due == {}


def test_a_vmi_of_the_same_name_has_failed_nothing() -> None:
    """Count only the migrations whose names contain the VMI's uid."""
    assert next_name(vmi("x"), [vmim("evacuation-u-other-7", "x", "Failed")]) == "evacuation-u-x-1"


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "9999999999"])
def test_a_bound_that_is_none_is_refused(value: str) -> None:
    """Raise an error that names the setting."""
    with pytest.raises(ValueError, match="MIGRATIONS_PER_NODE"):
        Slots.of({"MIGRATIONS_PER_NODE": value})


def test_bounds_are_set_by_the_environment() -> None:
    """Use KubeVirt's limits as defaults."""
    assert Slots.of({}) == Slots(5, 2)
    assert Slots.of({"MIGRATIONS_PER_CLUSTER": "9", "MIGRATIONS_PER_NODE": "3"}) == Slots(9, 3)


@proves("C3", "DRN-8")
@pytest.mark.parametrize(
    ("taint", "drained"),
    [
        ({"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"}, True),
        ({"key": "medik8s.io/drain", "effect": "NoSchedule"}, True),
        ({"key": "kubevirt.io/drain", "effect": "NoExecute"}, False),
        ({"key": "other", "effect": "NoSchedule"}, False),
    ],
)
def test_either_key_asks_for_migration_whatever_its_value(taint: Object, drained: bool) -> None:
    """Compare only key and effect of the taint."""
    assert is_drained({"spec": {"taints": [taint]}}) is drained


@proves("DRN-8")
def test_a_migration_counts_for_the_node_that_it_leaves_until_it_is_finished() -> None:
    """Count a migration for its source node, although the VMI is on the target node just before it finishes."""
    arrived = vmim("one", "m")
    arrived["status"]["migrationState"]["sourceNode"] = "a"
    found = judged([vmi("m", node="b"), vmi("x"), vmi("y")], [arrived], slots=Slots(5, 2))
    assert reasons(found) == {"x": "Migrating", "y": "WaitsForSlot"}
