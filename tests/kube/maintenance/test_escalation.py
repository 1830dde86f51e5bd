"""Tests for a drain's deadline and escalation: valid specs, due escalation steps and deleted pods, on plain dicts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kube.budgets import CREATED_BY_LABEL, ESCALATION_REASON, BlockedPod, build_object_reference
from kube.maintenance import escalation
from kube.maintenance.escalation import DELETE, DELETE_NOW, DELETE_UNREADY, EscalationStep
from kube.paths import Object
from kube.pods import DrainOptions
from kube.times import format_time
from tests.kube.samples import make_maintenance, make_pod

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
STEPS = [
    {"after": "10m", "action": DELETE_UNREADY},
    {"after": "30m", "action": DELETE},
    {"after": "1h", "action": DELETE_NOW},
]
BUDGET, SEVERAL_BUDGETS = "DisruptionBudget", "MultipleBudgets"
READY_NAME = {"namespace": "ns", "name": "ready"}
UNREADY, READY = make_pod("unready", ready=False), make_pod("ready")
TERMINATING = make_pod("terminating", deletionTimestamp="2026-01-02T03:04:05Z", deletionGracePeriodSeconds=30)


def make_draining_maintenance(drain: Any, status: Object | None = None) -> Object:
    """Return a maintenance in phase Running with this `spec.drain`, whose drain began at `START`."""
    maintenance = make_maintenance({"phase": "Running", "startTime": format_time(START), **(status or {})})
    return {**maintenance, "spec": {**maintenance["spec"], "drain": drain}}


def make_escalated_maintenance(action: str, minutes: int = 0, *, steps: Any = STEPS, **status: Any) -> Object:
    """Return a maintenance whose escalation step with this action began `minutes` after the start of the drain."""
    (step,) = [step for step in STEPS if step["action"] == action]
    recorded = {**step, "time": format_time(START + timedelta(minutes=minutes))}
    return make_draining_maintenance({"escalation": steps}, {"escalation": recorded, **status})


def make_blocked_pod_entry(pod: Object, reason: str = BUDGET) -> BlockedPod:
    return BlockedPod(build_object_reference(pod), reason, "why")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1), ("10m", 600), ("1h30m", 5400), ("1h0m1s", 3601), ("99999h", 99999 * 3600), ("90s", 90)],
)
def test_duration_of_hours_minutes_and_seconds_is_parsed(text: str, seconds: int) -> None:
    """Check that a duration consists of hours, minutes and seconds."""
    assert escalation.parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", ["", "0s", "10", "-5m", "1d", "1m1h", "1.5h", "100000h", "1h\n", "１h", 600, None])
def test_invalid_duration_is_rejected(value: object) -> None:
    """Check that the error about an invalid duration quotes the value and states the remedy."""
    with pytest.raises(ValueError, match=r"is not a positive duration: write hours, minutes and seconds, as in 1h30m"):
        escalation.parse_duration(value)


def test_drain_schedule_contains_deadline_and_escalation_steps() -> None:
    """Check that the deadline and the escalation steps in the spec are parsed."""
    schedule = escalation.parse_drain_schedule(make_draining_maintenance({"deadline": "2h", "escalation": STEPS}))

    assert (schedule.deadline, schedule.error) == (timedelta(hours=2), "")
    assert [(step.action, step.delay) for step in schedule.steps] == [
        (DELETE_UNREADY, timedelta(minutes=10)),
        (DELETE, timedelta(minutes=30)),
        (DELETE_NOW, timedelta(hours=1)),
    ]


@pytest.mark.parametrize("drain", [None, {}, {"deadline": None, "escalation": None}, {"escalation": []}, "all"])
def test_drain_schedule_is_empty_without_deadline_and_escalation(drain: Any) -> None:
    """Check that without deadline and escalation in the spec, no escalation step is ever due."""
    maintenance = make_draining_maintenance(drain)

    assert escalation.parse_drain_schedule(maintenance) == escalation.DrainSchedule()
    assert not escalation.has_unreported_escalation(maintenance, START + timedelta(days=9))
    assert escalation.find_due_escalation_step(maintenance, START + timedelta(days=9)) is None


@pytest.mark.parametrize(
    ("drain", "error"),
    [
        ({"deadline": "soon"}, 'spec.drain.deadline "soon" is not a positive duration'),
        ({"deadline": 5}, 'spec.drain.deadline "5" is not a positive duration'),
        ({"escalation": "Delete"}, "spec.drain.escalation is not a list"),
        ({"escalation": ["Delete"]}, "spec.drain.escalation[0] is not an object"),
        ({"escalation": [{"after": "1m"}]}, 'spec.drain.escalation[0].action "None" is unknown: use DeleteUnready, '),
        ({"escalation": [{"after": "1m", "action": []}]}, 'spec.drain.escalation[0].action "[]" is unknown'),
        ({"escalation": [{"action": DELETE}]}, 'spec.drain.escalation[0].after "None" is not a positive duration'),
        ({"escalation": [STEPS[0], {"after": "x", "action": DELETE}]}, 'spec.drain.escalation[1].after "x" is not a'),
        (
            {"escalation": [STEPS[0], {"after": "10m", "action": DELETE}]},
            "spec.drain.escalation[1].after 10m is not later than 10m: sort the steps by time",
        ),
        (
            {"escalation": [STEPS[0], {"after": "20m", "action": DELETE_UNREADY}]},
            "spec.drain.escalation[1].action DeleteUnready does not follow DeleteUnready: use DeleteUnready, Delete,",
        ),
        ({"escalation": [STEPS[1], {**STEPS[0], "after": "2h"}]}, "action DeleteUnready does not follow Delete"),
    ],
)
def test_error_names_invalid_field_of_drain_schedule(drain: Any, error: str) -> None:
    """Check that the error about an invalid schedule names the field, and that no escalation step is due."""
    maintenance = make_draining_maintenance(drain)

    schedule = escalation.parse_drain_schedule(maintenance)

    assert error in schedule.error
    assert (schedule.deadline, schedule.steps) == (None, ())
    assert escalation.find_due_escalation_step(maintenance, START + timedelta(days=9)) is None


@pytest.mark.parametrize(
    ("maintenance", "minutes", "due_action"),
    [
        pytest.param(make_draining_maintenance({"escalation": STEPS}), 9, None, id="before the first step"),
        pytest.param(make_draining_maintenance({"escalation": STEPS}), 10, DELETE_UNREADY, id="first step"),
        pytest.param(
            make_draining_maintenance({"escalation": STEPS}), 90, DELETE_UNREADY, id="steps are never skipped"
        ),
        pytest.param(make_escalated_maintenance(DELETE_UNREADY, 10), 29, None, id="before the second step"),
        pytest.param(make_escalated_maintenance(DELETE_UNREADY, 10), 30, DELETE, id="second step"),
        pytest.param(
            make_escalated_maintenance(DELETE_UNREADY, 90), 109, None, id="after a late step, the distance remains"
        ),
        pytest.param(make_escalated_maintenance(DELETE_UNREADY, 90), 110, DELETE, id="second step after a late step"),
        pytest.param(make_escalated_maintenance(DELETE_NOW, 60), 900, None, id="after the last step"),
        pytest.param(
            make_draining_maintenance({"escalation": STEPS}, {"phase": "Succeeded"}), 900, None, id="after a success"
        ),
        pytest.param(
            make_escalated_maintenance(DELETE, steps=STEPS[:1]), 30, DELETE_UNREADY, id="the spec lacks the step"
        ),
        pytest.param(
            make_escalated_maintenance(DELETE, steps=[{**STEPS[1], "after": "40m"}]), 39, None, id="the step has moved"
        ),
        pytest.param(make_draining_maintenance({"escalation": STEPS}, {"startTime": None}), 90, None, id="no start"),
        pytest.param(
            make_draining_maintenance({"escalation": STEPS}, {"startTime": "yesterday"}), 90, None, id="malformed start"
        ),
        pytest.param(
            make_draining_maintenance({"escalation": STEPS}, {"escalation": {**STEPS[0], "time": "x"}}),
            90,
            None,
            id="malformed time",
        ),
        pytest.param(
            make_draining_maintenance({"escalation": STEPS}, {"escalation": "x"}),
            10,
            DELETE_UNREADY,
            id="malformed step",
        ),
    ],
)
def test_next_escalation_step_is_due_at_its_time(maintenance: Object, minutes: int, due_action: str | None) -> None:
    """Check that an escalation step is due at its time, and later if the previous step was late."""
    step = escalation.find_due_escalation_step(maintenance, START + timedelta(minutes=minutes))

    assert (step.action if step else None) == due_action


@pytest.mark.parametrize(
    ("maintenance", "minutes", "expected"),
    [
        pytest.param(make_draining_maintenance({"deadline": "1h"}), 59, False, id="before the deadline"),
        pytest.param(make_draining_maintenance({"deadline": "1h"}), 60, True, id="deadline"),
        pytest.param(
            make_draining_maintenance(
                {"deadline": "1h"}, {"conditions": [{"type": "Drained", "reason": "DeadlineExceeded"}]}
            ),
            *(60, False),
            id="deadline is reported",
        ),
        pytest.param(make_draining_maintenance({"escalation": STEPS}), 10, True, id="step"),
        pytest.param(make_escalated_maintenance(DELETE_UNREADY, 10), 11, False, id="step is reported"),
        pytest.param(
            make_draining_maintenance({"deadline": "1h"}, {"startTime": None}), 0, True, id="start is not reported"
        ),
        pytest.param(
            make_draining_maintenance({"escalation": STEPS}, {"phase": "Succeeded"}), 900, False, id="drained"
        ),
    ],
)
def test_tick_emits_event_until_status_reports_drain_schedule(
    maintenance: Object, minutes: int, expected: bool
) -> None:
    """Check that a tick emits an event until the status contains the start, the passed deadline and the due step."""
    assert escalation.has_unreported_escalation(maintenance, START + timedelta(minutes=minutes)) is expected


@pytest.mark.parametrize(
    ("status", "is_drained", "expected"),
    [
        ({}, False, START),
        ({}, True, START),
        ({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}, False, datetime(2026, 1, 1, tzinfo=timezone.utc)),
        ({"phase": "Succeeded", "startTime": "2026-01-01T00:00:00Z"}, True, datetime(2026, 1, 1, tzinfo=timezone.utc)),
        ({"phase": "Succeeded", "startTime": "2026-01-01T00:00:00Z"}, False, START),
        ({"phase": "Succeeded"}, True, None),
        ({"phase": "Running", "startTime": 5}, False, START),
    ],
    ids=["first status", "drained at once", "running", "drained", "late pod", "earlier release", "malformed"],
)
def test_start_time_of_drain_is_kept_until_drained_node_gets_pod(
    status: Object, is_drained: bool, expected: datetime | None
) -> None:
    """Check that the start time of a drain is kept until a new pod appears on the drained node."""
    assert escalation.determine_drain_start_time(make_maintenance(status), START, is_drained=is_drained) == expected


@pytest.mark.parametrize(
    ("action", "pod", "reason", "is_deleted"),
    [
        (DELETE_UNREADY, UNREADY, BUDGET, True),
        (DELETE_UNREADY, UNREADY, SEVERAL_BUDGETS, True),
        (DELETE_UNREADY, READY, BUDGET, False),
        (DELETE_UNREADY, UNREADY, "", False),
        (DELETE, READY, BUDGET, True),
        (DELETE, READY, SEVERAL_BUDGETS, True),
        (DELETE, READY, "", False),
        (DELETE, TERMINATING, "", False),
        (DELETE_NOW, READY, BUDGET, True),
        (DELETE_NOW, READY, "", False),
        (DELETE_NOW, TERMINATING, "", True),
        (DELETE_NOW, TERMINATING, ESCALATION_REASON, False),
        (DELETE_NOW, make_pod(deletionTimestamp="x", deletionGracePeriodSeconds=0), "", False),
        *((DELETE_NOW, READY, reason, False) for reason in ("Returns", "NoAnswer", "Changing", "Busy", "Error")),
        *((DELETE_NOW, READY, reason, False) for reason in ("Migrating", "WaitsForKubeVirt", ESCALATION_REASON)),
        (DELETE_NOW, make_pod(labels={CREATED_BY_LABEL: "vmi"}), BUDGET, False),
        (DELETE_NOW, make_pod(owner="DaemonSet"), BUDGET, False),
    ],
)
def test_escalation_step_deletes_only_pods_that_its_action_allows(
    action: str, pod: Object, reason: str, is_deleted: bool
) -> None:
    """Check that each escalation step deletes only the blocked pods to which its action applies."""
    blocked = [make_blocked_pod_entry(pod, reason)] if reason else []

    assert escalation.select_pods_to_delete(make_escalated_maintenance(action), [pod], blocked, START) == (
        [pod] if is_deleted else []
    )


@pytest.mark.parametrize(
    ("action", "reason", "message", "is_deleted"),
    [
        (DELETE, "Error", "failed calling webhook", True),
        (DELETE, "Error", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request", True),
        (DELETE, "Error", "etcdserver: leader changed", False),
        (DELETE, "Forbidden", "", True),
        (DELETE_UNREADY, "Error", "failed calling webhook", False),
        (DELETE, "DisableEviction", "", False),
        (DELETE, ESCALATION_REASON, "", False),
        (DELETE, "NoAnswer", "", False),
    ],
)
def test_pod_whose_eviction_was_denied_is_deleted_after_backoff(
    action: str, reason: str, message: str, is_deleted: bool
) -> None:
    """Check that a pod whose eviction a webhook or a policy denied is deleted instead of evicted again."""
    maintenance = make_escalated_maintenance(action, blockedPods=[{**READY_NAME, "reason": reason, "message": message}])

    assert escalation.select_pods_to_delete(maintenance, [READY], [], START) == ([READY] if is_deleted else [])
    assert escalation.select_pods_to_delete(maintenance, [READY], [make_blocked_pod_entry(READY, reason)], START) == []


def test_recreated_pod_is_not_deleted_by_escalation() -> None:
    """Check that no escalation step deletes a pod that its controller would recreate on the same node."""
    created = format_time(START + timedelta(hours=2))
    pod = make_pod("recreated", creationTimestamp=created, owner="ReplicaSet")
    condition = {"type": "Cordoned", "status": "True", "lastTransitionTime": format_time(START)}
    maintenance = make_escalated_maintenance(DELETE, conditions=[condition])

    deletions = escalation.select_pods_to_delete(
        maintenance, [pod], [make_blocked_pod_entry(pod)], START + timedelta(hours=9)
    )

    assert deletions == []


@pytest.mark.parametrize(
    "maintenance",
    [
        make_draining_maintenance({"escalation": STEPS}),
        make_escalated_maintenance(DELETE_NOW, steps=STEPS[:2]),
        make_escalated_maintenance(DELETE_NOW, steps=[*STEPS[:2], {**STEPS[2], "after": "2h"}]),
        make_escalated_maintenance(DELETE_NOW, steps=[*STEPS[:2], {**STEPS[2], "after": "soon"}]),
        make_escalated_maintenance(DELETE_NOW, steps=None),
    ],
    ids=["no step recorded", "step removed", "step moved", "invalid spec", "escalation removed"],
)
def test_escalation_step_applies_only_while_status_and_spec_contain_it(maintenance: Object) -> None:
    """Check that no pod is deleted unless the status and the spec contain the escalation step."""
    assert escalation.find_current_escalation_step(maintenance) is None
    assert (
        escalation.select_pods_to_delete(maintenance, [UNREADY, TERMINATING], [make_blocked_pod_entry(UNREADY)], START)
        == []
    )


@pytest.mark.parametrize(("action", "seconds"), [(DELETE_UNREADY, 7), (DELETE, 7), (DELETE_NOW, 0)])
def test_only_delete_now_shortens_grace_period(action: str, seconds: int) -> None:
    """Check that escalation steps delete pods with the spec's grace period, except `DeleteNow`, which uses 0."""
    step = EscalationStep(action, "1m", timedelta(minutes=1))

    options = escalation.build_deletion_options(step, DrainOptions(force=False, grace_period_seconds=7))

    assert options == DrainOptions(
        force=False, disable_eviction=True, grace_period_seconds=seconds, escalation_action=action
    )
