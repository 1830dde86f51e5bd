"""Tests for selecting the VMIs to migrate from a drained node, and for the reasons why the other VMIs wait."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kube.paths import Object
from kube.times import format_time
from kube.virtualization.evacuation import EvacuationPlan, MigrationHistory, MigrationSlots, plan_evacuation
from kube.virtualization.migration_claims import CLAIM_DURATION, MigrationClaim, MigrationRefusal
from kube.virtualization.vmis import build_migration, has_drain_taint
from tests.proofs import proves

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
MIGRATABLE_CONDITION: Object = {"type": "LiveMigratable", "status": "True"}
UNMIGRATABLE_CONDITION: Object = {"type": "LiveMigratable", "status": "False", "message": "PVC disk is not shared"}


def make_vmi(name: str, node: str = "a", strategy: str | None = "LiveMigrate", **status: Any) -> Object:
    spec = {"evictionStrategy": strategy} if strategy else {}
    vmi_status = {"phase": "Running", "nodeName": node, "conditions": [MIGRATABLE_CONDITION], **status}
    return {"metadata": {"namespace": "ns", "name": name, "uid": f"u-{name}"}, "spec": spec, "status": vmi_status}


def make_migration(name: str, vmi_name: str, phase: str = "Running", ended_at: datetime = NOW) -> Object:
    status = {"phase": phase, "migrationState": {"endTimestamp": format_time(ended_at)}}
    metadata = {"namespace": "ns", "name": name, "uid": f"u-{name}"}
    return {"metadata": metadata, "spec": {"vmiName": vmi_name}, "status": status}


def plan_for_node_a(vmis: list[Object], migrations: list[Object] | None = None, **overrides: Any) -> EvacuationPlan:
    options: Any = {"drained_nodes": {"a"}, "claims": {}, "slots": MigrationSlots(), "now": NOW, **overrides}
    return plan_evacuation(vmis, migrations or [], **options)


def get_reasons(plan: EvacuationPlan) -> dict[str, str]:
    return {name: wait.reason for (_, name), wait in plan.waits.items()}


@proves("DRN-7", "DRN-8", "C14")
@pytest.mark.parametrize(
    "vmi",
    [
        make_vmi("x", node="b"),
        make_vmi("x", strategy=None),
        make_vmi("x", strategy="None"),
        make_vmi("x", strategy="LiveMigration"),
        make_vmi("x", phase="Succeeded"),
    ],
    ids=["on other node", "no strategy", "strategy None", "feature gate as strategy", "ended"],
)
def test_vmi_that_does_not_block_drain_has_no_reason_to_wait(vmi: Object) -> None:
    """Check that a VMI gets no reason to wait if its pod can be evicted, or if it is not on a drained node."""
    assert plan_for_node_a([vmi]) == EvacuationPlan()


@proves("DRN-9", "OSV-2")
def test_vmi_that_does_not_run_is_reported_with_remedy() -> None:
    """Check that the reason why a VMI that does not run cannot migrate is reported, since it blocks the drain."""
    (wait,) = plan_for_node_a([make_vmi("x", phase="Scheduling")]).waits.values()
    assert wait.reason == "NotMigratable"
    assert wait.message == (
        "it is Scheduling, and only a Running virtual machine can migrate: wait, or shut down virtual machine x"
    )


def test_migrations_of_deleted_vmis_use_no_migration_slot() -> None:
    """Check that migrations of deleted VMIs use no slot, since they never end if KubeVirt's controller is down."""
    orphaned_migrations = [make_migration(f"m-{number}", f"gone-{number}", "Pending") for number in range(5)]
    assert list(plan_for_node_a([make_vmi("x")], orphaned_migrations).due_migrations) == ["evacuation-u-x-1"]


def test_migration_that_is_older_than_vmi_is_ignored() -> None:
    """Check that a migration that is older than the VMI is ignored, because it belongs to an earlier VMI.

    A migration of an earlier VMI with the same name may never end, and must not hide the current VMI's migration.
    """
    vmi, earlier_migration, own_migration = (
        make_vmi("x"),
        make_migration("evacuation-old-1", "x"),
        make_migration("evacuation-u-x-1", "x"),
    )
    vmi["metadata"]["creationTimestamp"] = own_migration["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z"
    earlier_migration["metadata"]["creationTimestamp"] = "2026-11-20T09:59:59Z"
    assert list(plan_for_node_a([vmi], [earlier_migration]).due_migrations) == ["evacuation-u-x-1"]
    for migrations in ([earlier_migration, own_migration], [own_migration, earlier_migration]):
        plan = plan_for_node_a([vmi], migrations)
        assert (plan.due_migrations, plan.waits["ns", "x"].message) == ({}, "migration evacuation-u-x-1 is Running")


def test_failure_time_of_migration_in_future_is_ignored() -> None:
    """Check that the backoff starts at a failed migration's creation if its end time is in the future."""
    failed = make_migration("evacuation-u-x-1", "x", "Failed", NOW + timedelta(days=400))
    failed["metadata"]["creationTimestamp"] = format_time(NOW - timedelta(minutes=1))
    assert list(plan_for_node_a([make_vmi("x")], [failed]).due_migrations) == ["evacuation-u-x-2"]


@pytest.mark.parametrize(
    ("suffix", "vmi_name", "namespace"), [("1", "x", "other"), ("1", "y", "ns"), ("9" * 205, "x", "ns")]
)
def test_migration_with_similar_name_is_ignored(suffix: str, vmi_name: str, namespace: str) -> None:
    """Check that a migration of another VMI or namespace, or with too large a number, is ignored despite its name."""
    similar_migration = make_migration(f"evacuation-u-x-{suffix}", vmi_name, "Failed")
    similar_migration["metadata"]["namespace"] = namespace
    assert list(plan_for_node_a([make_vmi("x")], [similar_migration]).due_migrations) == ["evacuation-u-x-1"]


def test_rejected_migration_backs_off_and_is_then_retried_last() -> None:
    """Check that a rejected migration is reported during its backoff, and is then retried after all other VMIs."""
    vmis = [make_vmi("a"), make_vmi("b"), make_vmi("c")]
    retry_time, past_retry_time = NOW + timedelta(seconds=10), NOW - timedelta(seconds=1)
    plan_in_backoff = plan_for_node_a(vmis, refusals={"evacuation-u-a-1": MigrationRefusal(1, retry_time, "quota")})
    plan_after_backoff = plan_for_node_a(
        vmis, refusals={"evacuation-u-a-1": MigrationRefusal(1, past_retry_time, "quota")}
    )

    assert list(plan_in_backoff.due_migrations) == ["evacuation-u-b-1", "evacuation-u-c-1"]
    assert plan_in_backoff.waits["ns", "a"].reason == "MigrationFailed"
    assert plan_in_backoff.waits["ns", "a"].message.endswith(": quota")
    assert (list(plan_after_backoff.due_migrations), plan_after_backoff.waits["ns", "a"].reason) == (
        list(plan_in_backoff.due_migrations),
        "WaitsForSlot",
    )


@proves("DRN-8", "OSV-2")
def test_due_migration_has_reproducible_name() -> None:
    """Check that a migration's name contains the VMI's uid and a number, so that two passes create it only once."""
    plan = plan_for_node_a([make_vmi("x")])

    assert list(plan.due_migrations) == ["evacuation-u-x-1"]
    assert get_reasons(plan) == {"x": "Migrating"}
    assert build_migration("evacuation-u-x-1", make_vmi("x"))["spec"] == {"vmiName": "x"}


@proves("DRN-8")
def test_unfinished_migration_prevents_second_migration() -> None:
    """Check that a VMI waits for the unfinished migration of any client, and that the reason names the target node."""
    vmi = make_vmi("x", migrationState={"migrationUid": "u-by-hand", "targetNode": "b"})
    plan = plan_for_node_a([vmi], [make_migration("by-hand", "x")])

    assert plan.due_migrations == {}
    assert plan.waits[("ns", "x")].message == "migration by-hand to node b is Running"
    (wait,) = plan_for_node_a([vmi], [make_migration("second", "x", phase="Pending")]).waits.values()
    assert wait.message == "migration second is Pending"


@proves("OSV-2", "DRN-8")
@pytest.mark.parametrize(
    ("conditions", "message"),
    [([UNMIGRATABLE_CONDITION], "PVC disk is not shared"), ([], "it has no condition LiveMigratable yet")],
    ids=["with request", "without request"],
)
def test_unmigratable_vmi_is_reported_with_remedy(conditions: list[Object], message: str) -> None:
    """Check that the condition and the remedy of a VMI that cannot migrate are reported in one sentence."""
    plan = plan_for_node_a([make_vmi("x", conditions=conditions)])

    assert plan.due_migrations == {}
    assert get_reasons(plan) == {"x": "NotMigratable"}
    assert plan.waits[("ns", "x")].message == f"{message}: correct this, or shut down virtual machine x"


@proves("DRN-8")
@pytest.mark.parametrize(
    ("slots", "due_count", "message"),
    [
        (MigrationSlots(5, 2), 2, "2 of 2 concurrent migrations run from node a"),
        (MigrationSlots(1, 2), 1, "1 of 1 concurrent migrations run in the cluster"),
        (MigrationSlots(3, 3), 3, "3 of 3 concurrent migrations run in the cluster"),
    ],
)
def test_migration_slots_limit_concurrent_migrations(slots: MigrationSlots, due_count: int, message: str) -> None:
    """Check that migrations respect the limits per cluster and node, and that a waiting VMI's message names one."""
    plan = plan_for_node_a([make_vmi(f"x{number}") for number in range(4)], slots=slots)

    assert len(plan.due_migrations) == due_count
    assert {wait.message for wait in plan.waits.values() if wait.reason == "WaitsForSlot"} == {message}


@proves("DRN-8")
def test_migrations_from_other_nodes_count_toward_cluster_limit() -> None:
    """Check that migrations from other nodes count toward the cluster's limit of five migration slots."""
    other_vmis = [make_vmi(f"o{number}", node="b") for number in range(5)]
    running_migrations = [make_migration(f"m{number}", f"o{number}") for number in range(5)]

    assert plan_for_node_a([make_vmi("x"), *other_vmis], running_migrations).due_migrations == {}
    assert (
        len(
            plan_for_node_a(
                [make_vmi("x"), make_vmi("y"), make_vmi("z"), *other_vmis], running_migrations[:1]
            ).due_migrations
        )
        == 2
    )


CLAIMS = {"evacuation-u-z-1": MigrationClaim("event-1", "a", NOW + CLAIM_DURATION)}


@proves("DRN-8", "X-2")
def test_claim_is_continued_only_by_redelivered_event() -> None:
    """Check that only a redelivery of the same event continues a claim; other events do not use its slot or VMI."""
    own_plan = plan_for_node_a(
        [make_vmi("x"), make_vmi("z")], claims=CLAIMS, slots=MigrationSlots(1, 1), attempt_id="event-1"
    )
    other_plan = plan_for_node_a(
        [make_vmi("x"), make_vmi("z")], claims=CLAIMS, slots=MigrationSlots(1, 1), attempt_id="event-2"
    )

    assert (list(own_plan.due_migrations), own_plan.held_claims) == (["evacuation-u-z-1"], {})
    assert (other_plan.due_migrations, other_plan.held_claims) == ({}, CLAIMS)
    for plan in (own_plan, other_plan):
        assert get_reasons(plan) == {"x": "WaitsForSlot", "z": "Migrating"}


@proves("DRN-8")
@pytest.mark.parametrize(
    "other_vmis", [[], [make_vmi("z", conditions=[UNMIGRATABLE_CONDITION])], [make_vmi("z", node="b")]], ids=len
)
def test_claim_keeps_migration_slot_if_vmi_is_missing(other_vmis: list[Object]) -> None:
    """Check that a claim keeps its slot if its VMI is missing, because its attempt may still create the migration."""
    plan = plan_for_node_a([make_vmi("x"), *other_vmis], claims=CLAIMS, slots=MigrationSlots(5, 1))

    assert plan.due_migrations == {}
    assert get_reasons(plan)["x"] == "WaitsForSlot"


@proves("DRN-8")
def test_expired_claim_frees_migration_slot() -> None:
    """Check that the slot of an expired claim is free, because its attempt no longer creates a migration."""
    plan = plan_for_node_a([make_vmi("z")], claims=CLAIMS, now=NOW + CLAIM_DURATION, attempt_id="event-2")

    assert (list(plan.due_migrations), plan.held_claims) == (["evacuation-u-z-1"], {})


@proves("DRN-8")
def test_created_migration_is_counted_once() -> None:
    """Check that a created migration counts as a running migration, and not in addition as a claim."""
    plan = plan_for_node_a(
        [make_vmi("z"), make_vmi("x")],
        [make_migration("evacuation-u-z-1", "z")],
        claims=CLAIMS,
        slots=MigrationSlots(5, 2),
    )

    assert list(plan.due_migrations) == ["evacuation-u-x-1"]


@proves("DRN-9")
@pytest.mark.parametrize(("failure_count", "backoff_seconds"), [(1, 10), (2, 20), (3, 40), (9, 300)])
def test_failed_migration_is_retried_after_growing_backoff(failure_count: int, backoff_seconds: int) -> None:
    """Check that a migration's backoff doubles after each failure up to five minutes; the retry time is reported."""
    failed = [make_migration(f"evacuation-u-x-{number}", "x", "Failed") for number in range(1, failure_count + 1)]
    before_retry, at_retry = NOW + timedelta(seconds=backoff_seconds - 1), NOW + timedelta(seconds=backoff_seconds)

    plan_before_retry = plan_for_node_a([make_vmi("x")], failed, now=before_retry)
    assert get_reasons(plan_before_retry) == {"x": "MigrationFailed"}
    assert format_time(at_retry) in plan_before_retry.waits[("ns", "x")].message
    assert list(plan_for_node_a([make_vmi("x")], failed, now=at_retry).due_migrations) == [
        f"evacuation-u-x-{failure_count + 1}"
    ]


@proves("DRN-9")
def test_migration_failures_before_success_do_not_count() -> None:
    """Check that only failures after the last successful migration count, since older ones belong to earlier drains."""
    phases = ("Failed", "Failed", "Failed", "Succeeded", "Failed")
    migrations = [make_migration(f"evacuation-u-x-{number}", "x", phase) for number, phase in enumerate(phases, 1)]
    before_retry, at_retry = NOW + timedelta(seconds=9), NOW + timedelta(seconds=10)

    assert (
        "failed once, last evacuation-u-x-5"
        in plan_for_node_a([make_vmi("x")], migrations, now=before_retry).waits["ns", "x"].message
    )
    assert list(plan_for_node_a([make_vmi("x")], migrations, now=at_retry).due_migrations) == ["evacuation-u-x-6"]
    assert list(plan_for_node_a([make_vmi("x")], migrations[:4]).due_migrations) == ["evacuation-u-x-5"]


class IterationCountingList(list[Object]):
    """List of migrations that counts how often it is iterated."""

    iterations = 0

    def __iter__(self) -> Iterator[Object]:
        self.iterations += 1
        return super().__iter__()


def test_migrations_are_iterated_once_for_any_number_of_vmis() -> None:
    """Check that the migrations, of which a VMI may cause hundreds a day, are iterated once for any number of VMIs."""
    migrations_for_few_vmis, migrations_for_many_vmis = (
        IterationCountingList([make_migration(f"evacuation-u-x0-{number}", "x0", "Failed") for number in (1, 2)])
        for _ in range(2)
    )
    plan_for_node_a([make_vmi("x0")], migrations_for_few_vmis)
    plan_for_node_a([make_vmi(f"x{number}") for number in range(20)], migrations_for_many_vmis)
    assert migrations_for_few_vmis.iterations == migrations_for_many_vmis.iterations


def test_newest_finished_migrations_are_kept() -> None:
    """Check that the six newest finished migrations are kept, because six failures cause the longest backoff.

    Running migrations, and migrations that other clients created, are never deleted.
    """
    failed = [make_migration(f"evacuation-u-x-{number}", "x", "Failed") for number in range(1, 13)]
    foreign_migrations = [make_migration(f"by-hand-{number}", "x", "Failed") for number in range(9)]
    kept_migrations = failed[5:11]
    plan = plan_for_node_a(
        [make_vmi("x")],
        [
            *reversed(failed[:11]),
            *foreign_migrations,
            make_migration("evacuation-u-x-12", "x"),
            make_migration("m", "y"),
        ],
    )

    assert plan.outdated_migrations == failed[:5]
    assert plan_for_node_a([make_vmi("x")], kept_migrations).outdated_migrations == []
    assert (
        plan_for_node_a([make_vmi("x")], kept_migrations)
        .waits["ns", "x"]
        .message.startswith("its migration failed 6 times or more, last")
    )
    assert list(plan_for_node_a([make_vmi("x")], kept_migrations, now=NOW + timedelta(minutes=5)).due_migrations) == [
        "evacuation-u-x-12"
    ]
    assert plan_for_node_a([make_vmi("x")], kept_migrations, now=NOW + timedelta(seconds=299)).due_migrations == {}


def test_migrations_with_other_uid_are_not_counted() -> None:
    """Check that the number in the next migration's name depends only on migrations named after the VMI's uid."""
    earlier_migration = make_migration("evacuation-u-other-7", "x", "Failed")

    assert MigrationHistory(make_vmi("x"), [earlier_migration]).next_name == "evacuation-u-x-1"


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "9999999999"])
def test_invalid_migration_limit_raises_value_error(value: str) -> None:
    """Check that the error about an invalid migration limit names the environment variable."""
    with pytest.raises(ValueError, match="MIGRATIONS_PER_NODE"):
        MigrationSlots.from_environment({"MIGRATIONS_PER_NODE": value})


def test_migration_limits_are_read_from_environment() -> None:
    """Check that migration limits are read from the environment, and that the defaults are KubeVirt's limits."""
    assert MigrationSlots.from_environment({}) == MigrationSlots(5, 2)
    assert MigrationSlots.from_environment(
        {"MIGRATIONS_PER_CLUSTER": "9", "MIGRATIONS_PER_NODE": "3"}
    ) == MigrationSlots(9, 3)


@proves("C3", "DRN-8")
@pytest.mark.parametrize(
    ("taint", "is_drained_node"),
    [
        ({"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"}, True),
        ({"key": "medik8s.io/drain", "effect": "NoSchedule"}, True),
        ({"key": "kubevirt.io/drain", "effect": "NoExecute"}, False),
        ({"key": "other", "effect": "NoSchedule"}, False),
    ],
)
def test_either_drain_taint_requests_migration(taint: Object, is_drained_node: bool) -> None:
    """Check that a drain taint is recognized by its key and effect, whatever its value."""
    assert has_drain_taint({"spec": {"taints": [taint]}}) is is_drained_node


@proves("DRN-8")
def test_migration_counts_for_source_node_until_it_finishes() -> None:
    """Check that a migration counts for its source node, even if the VMI is already on the target node."""
    migration = make_migration("one", "m")
    migration["status"]["migrationState"]["sourceNode"] = "a"
    plan = plan_for_node_a(
        [make_vmi("m", node="b"), make_vmi("x"), make_vmi("y")], [migration], slots=MigrationSlots(5, 2)
    )
    assert get_reasons(plan) == {"x": "Migrating", "y": "WaitsForSlot"}
