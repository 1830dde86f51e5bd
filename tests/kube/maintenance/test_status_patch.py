"""Tests for the patch of a NodeMaintenance's status, on plain dicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.maintenance import objects as m
from kube.maintenance.node_snapshot import NodeSnapshot, StepSnapshot, parse_leaving_entry
from kube.maintenance.status_patch import StatusInput, build_status_patch, compute_progress
from kube.paths import Object
from kube.pods import build_pvc_volume
from kube.times import format_time
from kube.trimming import trim_pod_for_drain
from tests.kube.samples import NODE_IN_MAINTENANCE, make_maintenance, make_node, make_pod

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
NOW_TEXT = "2026-01-02T03:04:05Z"
LATER = NOW + timedelta(minutes=1)
DRAINED_INPUT = StatusInput(is_drained=True)


def make_snapshot(pods: Sequence[Object], target_node: Object | None = NODE_IN_MAINTENANCE) -> NodeSnapshot:
    """Return the snapshot of a node and its pods."""
    return NodeSnapshot.from_node(make_maintenance(), target_node, pods)


def get_patched_status(
    maintenance: Object, *pods: Object, status_input: StatusInput | None = None, now: datetime = NOW
) -> Object:
    """Return the complete status after the patch, and assert that there is a patch."""
    patch = build_status_patch(maintenance, make_snapshot(pods), status_input or StatusInput(), now)
    assert patch is not None
    merged = {**(maintenance.get("status") or {}), **patch["status"]}
    return {key: value for key, value in merged.items() if value is not None}


def apply_status_patch(
    maintenance: Object, *pods: Object, status_input: StatusInput | None = None, now: datetime = NOW
) -> Object:
    """Return the maintenance after the status patch, as the API server would store it."""
    return {**maintenance, "status": get_patched_status(maintenance, *pods, status_input=status_input, now=now)}


def get_condition_fields(maintenance: Object, condition_type: str) -> tuple[str, str, str]:
    condition = m.get_condition(maintenance, condition_type)
    return condition["status"], condition["reason"], condition["lastTransitionTime"]


@pytest.mark.parametrize(
    ("eviction_pods", "pending", "previous_percent", "expected_percent"),
    [
        pytest.param(5, 3, 0, 40, id="documented example"),
        pytest.param(3, 2, 0, 33, id="rounded down"),
        pytest.param(5, 5, 0, 0, id="no pod gone"),
        pytest.param(5, 0, 0, 100, id="all pods gone"),
        pytest.param(5, 7, 0, 0, id="more pods than initially"),
        pytest.param(5, 4, 60, 60, id="never decreasing"),
        pytest.param(0, 0, 0, 100, id="nothing to evict"),
    ],
)
def test_drain_progress_is_computed_in_percent(
    eviction_pods: int, pending: int, previous_percent: int, expected_percent: int
) -> None:
    """NMO-10: `drainProgress` is (evictionPods - pending) * 100 // evictionPods, and never decreases."""
    assert compute_progress(eviction_pods, pending, previous_percent) == expected_percent


@given(st.integers(0, 50), st.lists(st.integers(0, 60), max_size=20))
def test_drain_progress_never_decreases_for_any_sequence(eviction_pods: int, pending_counts: list[int]) -> None:
    """NMO-10: for any sequence of pending pods, `drainProgress` never decreases and stays between 0 and 100."""
    progress = [0]
    for pending in pending_counts:
        progress.append(compute_progress(eviction_pods, pending, progress[-1]))

    assert progress == sorted(progress)
    assert 0 <= progress[-1] <= 100


def test_status_of_a_running_drain_has_progress_and_pods() -> None:
    """NMO-10, NMO-12, KNM-2, C1: the status of a running drain has progress, pods, `totalpods` and `totalPods`."""
    status = get_patched_status(
        make_maintenance(), make_pod("a"), make_pod("b", namespace="other"), make_pod("c", owner="DaemonSet")
    )

    assert (status["phase"], status["drainProgress"]) == ("Running", 60)
    assert (status["evictionPods"], status["totalpods"], status["totalPods"]) == (5, 9, 9)
    assert (status["pendingPods"], status["pendingCount"]) == (["a", "b"], 2)
    assert status["pendingPodsRefs"] == [{"namespace": "ns", "name": "a"}, {"namespace": "other", "name": "b"}]
    assert status["lastUpdate"] == NOW_TEXT
    assert "lastError" not in status
    assert "blocked" not in m.get_condition({"status": status}, "Drained")["message"]


def test_status_patch_requires_resource_version_that_was_read() -> None:
    """X-6: the patch has the resourceVersion that was read, so that it overwrites no later write of another client."""
    patch = build_status_patch(make_maintenance(), make_snapshot([]), DRAINED_INPUT, NOW)

    assert patch is not None
    assert patch["metadata"] == {"resourceVersion": "7"}


@pytest.mark.parametrize("pods", [[], [make_pod("a")]], ids=["drained", "running"])
def test_unchanged_state_gives_no_status_patch(pods: list[Object]) -> None:
    """NMO-12, X-2: the same state one minute later gives no patch, so that no status write causes another one."""
    maintenance = apply_status_patch(make_maintenance(), *pods, status_input=DRAINED_INPUT)

    assert build_status_patch(maintenance, make_snapshot(pods), DRAINED_INPUT, LATER) is None


def test_status_patch_has_only_changed_fields() -> None:
    """NMO-12: after a pod has terminated, the patch has the progress and the pending pods, but not the pod counts."""
    maintenance = apply_status_patch(make_maintenance(), make_pod("a"), make_pod("b"))

    patch = build_status_patch(maintenance, make_snapshot([make_pod("a")]), StatusInput(), LATER)

    assert patch is not None
    assert set(patch["status"]) == {
        *("drainProgress", "pendingPods", "pendingPodsRefs", "pendingCount"),
        *("conditions", "lastUpdate"),
    }


@pytest.mark.parametrize(
    ("previous_phase", "pods", "status_input", "phase"),
    [
        pytest.param(None, [], StatusInput(), "Running", id="no pods, but no drained event"),
        pytest.param(None, [], DRAINED_INPUT, "Succeeded", id="drained"),
        pytest.param(None, [make_pod("a")], DRAINED_INPUT, "Running", id="drained event, but a pod remains"),
        pytest.param("Succeeded", [], StatusInput(), "Succeeded", id="still succeeded"),
        pytest.param("Succeeded", [make_pod("a")], StatusInput(), "Running", id="late pod"),
        pytest.param("Failed", [], StatusInput(), "Running", id="begun after a failure"),
    ],
)
def test_phase_is_succeeded_only_after_node_drained_event(
    previous_phase: str | None, pods: list[Object], status_input: StatusInput, phase: str
) -> None:
    """NMO-10: the phase is Succeeded only after `node.drained`, and only while no pod to evict is on the node."""
    maintenance = make_maintenance({"phase": previous_phase} if previous_phase else None)

    assert get_patched_status(maintenance, *pods, status_input=status_input)["phase"] == phase


def test_completed_drain_clears_pods_and_error() -> None:
    """NMO-10, NMO-13: after the drain, the progress is 100, no pod is pending or blocked, and `lastError` is unset."""
    blocked = {"namespace": "ns", "name": "a", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    maintenance = apply_status_patch(
        make_maintenance(), make_pod("a"), status_input=StatusInput(error="a is blocked", blocked=[blocked])
    )

    status = get_patched_status(maintenance, status_input=DRAINED_INPUT, now=LATER)

    assert (status["phase"], status["drainProgress"]) == ("Succeeded", 100)
    assert (status["pendingPods"], status["pendingCount"], status["blockedPods"]) == ([], 0, [])
    assert "lastError" not in status


def test_step_without_errors_clears_last_error() -> None:
    """NMO-13, C20: `lastError` contains the latest error, and a step without errors clears it."""
    maintenance = apply_status_patch(make_maintenance(), make_pod("a"), status_input=StatusInput(error="cannot cordon"))

    assert maintenance["status"]["lastError"] == "cannot cordon"
    assert "lastError" not in get_patched_status(maintenance, make_pod("a"))


def test_event_without_blocked_pods_keeps_the_error() -> None:
    """NMO-12, NMO-13: an event that does not list the blocked pods keeps the error about blocked pods."""
    blocked = {"namespace": "ns", "name": "a", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    maintenance = apply_status_patch(
        make_maintenance(), make_pod("a"), status_input=StatusInput(error="a is blocked", blocked=[blocked])
    )

    assert build_status_patch(maintenance, make_snapshot([make_pod("a")]), StatusInput(), LATER) is None
    assert "lastError" not in get_patched_status(maintenance, make_pod("a"), status_input=StatusInput(blocked=[]))


def test_since_field_of_blocked_pod_is_kept_while_reason_is_unchanged() -> None:
    """NMO-12: `since` of a blocked pod is kept while the reason is unchanged, and reset if the reason changes."""
    blocked_pod = {
        "namespace": "ns",
        "name": "a",
        "uid": "u",
        "reason": "DisruptionBudget",
        "message": "m",
        "budget": "b",
    }
    maintenance = apply_status_patch(
        make_maintenance(), make_pod("a"), status_input=StatusInput(blocked=[{**blocked_pod, "healthy": 3}])
    )
    with_same_reason = apply_status_patch(
        maintenance, make_pod("a"), status_input=StatusInput(blocked=[{**blocked_pod, "healthy": 2}]), now=LATER
    )
    with_other_reason = apply_status_patch(
        with_same_reason,
        make_pod("a"),
        status_input=StatusInput(blocked=[{**blocked_pod, "reason": "Forbidden"}]),
        now=LATER,
    )

    assert [blocked["since"] for blocked in maintenance["status"]["blockedPods"]] == [NOW_TEXT]
    assert [blocked["since"] for blocked in with_same_reason["status"]["blockedPods"]] == [NOW_TEXT]
    assert [blocked["since"] for blocked in with_other_reason["status"]["blockedPods"]] == [format_time(LATER)]
    assert "uid" not in maintenance["status"]["blockedPods"][0]


def test_since_field_is_reset_if_different_pdb_blocks_pod() -> None:
    """NMO-12: `since` of a blocked pod is reset if a different PDB blocks the pod."""
    blocked_pod = {"namespace": "ns", "name": "a", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    maintenance = apply_status_patch(make_maintenance(), make_pod("a"), status_input=StatusInput(blocked=[blocked_pod]))
    with_other_budget = apply_status_patch(
        maintenance, make_pod("a"), status_input=StatusInput(blocked=[{**blocked_pod, "budget": "c"}]), now=LATER
    )

    assert [blocked["since"] for blocked in with_other_budget["status"]["blockedPods"]] == [format_time(LATER)]


def test_blocked_pods_with_same_name_in_two_namespaces_are_distinguished() -> None:
    """NMO-12: pods with the same name in two namespaces have separate `since` values."""
    first_pod, second_pod = (
        {"namespace": name, "name": "a", "reason": "Forbidden", "message": "m"} for name in ("ns", "other")
    )
    pods = (make_pod("a"), make_pod("a", namespace="other"))
    maintenance = apply_status_patch(make_maintenance(), *pods, status_input=StatusInput(blocked=[first_pod]))
    with_both = apply_status_patch(
        maintenance, *pods, status_input=StatusInput(blocked=[first_pod, second_pod]), now=LATER
    )

    assert [(blocked["namespace"], blocked["since"]) for blocked in with_both["status"]["blockedPods"]] == [
        ("ns", NOW_TEXT),
        ("other", format_time(LATER)),
    ]


def test_terminating_or_deleted_pods_are_not_blocked() -> None:
    """NMO-12: a pod that an event reports as blocked is omitted if it is terminating or no longer exists."""
    blocked = [
        {"namespace": "ns", "name": name, "reason": "DisruptionBudget", "message": "m", "budget": "b"} for name in "abc"
    ]
    terminating_pod = make_pod("b", deletionTimestamp="2027-01-01T00:00:00Z")

    status = get_patched_status(
        make_maintenance(), make_pod("a"), terminating_pod, status_input=StatusInput(blocked=blocked)
    )

    assert [blocked_pod["name"] for blocked_pod in status["blockedPods"]] == ["a"]


@pytest.mark.parametrize(("reason", "pending"), [("Force", ["agent"]), ("", [])], ids=["orphan", "with its DaemonSet"])
def test_orphaned_daemonset_pod_is_pending_with_force_false(reason: str, pending: list[str]) -> None:
    """DRN-1a, NMO-7: with `force: false`, a DaemonSet pod that `evict` reported as an orphan is pending."""
    maintenance = make_maintenance()
    maintenance["spec"]["drain"] = {"force": False}
    blocked = [{"namespace": "ns", "name": "agent", "reason": reason, "message": "m"}] if reason else []

    status = get_patched_status(
        maintenance, make_pod("agent", owner="DaemonSet"), status_input=StatusInput(blocked=blocked)
    )

    assert status["pendingPods"] == pending


@pytest.mark.parametrize(
    ("finalizers", "grace_period_end", "reason"),
    [
        pytest.param(["example.com/hold"], "2026-01-02T03:03:50Z", "Finalizers", id="held by a finalizer"),
        pytest.param([], "2026-01-02T03:03:50Z", "Terminating", id="not ended by its kubelet"),
        pytest.param([], "2026-01-02T03:03:56Z", "", id="about to be removed by its kubelet"),
        pytest.param(["example.com/hold"], "2026-01-02T03:05:00Z", "", id="still in its grace period"),
    ],
)
def test_stuck_pod_is_blocked(finalizers: list[str], grace_period_end: str, reason: str) -> None:
    """OSV-15: a pod that still exists after its grace period is blocked, and its message names the finalizers."""
    stuck_pod = make_pod("a", deletionTimestamp=grace_period_end, finalizers=finalizers)

    status = get_patched_status(make_maintenance(), stuck_pod)

    assert [blocked_pod["reason"] for blocked_pod in status["blockedPods"]] == ([reason] if reason else [])
    assert all(name in status["blockedPods"][0]["message"] for name in finalizers if reason)
    assert [blocked_pod["budget"] for blocked_pod in status["blockedPods"]] == ([""] if reason else [])
    assert status["pendingPods"] == ["a"]


CLAIM_VOLUMES = [build_pvc_volume(name) for name in ("data", "logs")]
UNREACHABLE_NODE = {
    **NODE_IN_MAINTENANCE,
    "status": {"conditions": [{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": "Unknown"}]},
}


def make_stuck_pod(*, phase: str = "Running", volumes: Sequence[Object] = (), **metadata: Any) -> Object:
    """Return a pod whose grace period ended a minute ago."""
    end = format_time(NOW - timedelta(minutes=1))
    pod = make_pod("a", phase=phase, deletionTimestamp=end, **metadata)
    return {**pod, "spec": {"volumes": list(volumes)}}


@pytest.mark.parametrize(
    ("pod", "node", "reason", "message"),
    [
        (make_stuck_pod(), NODE_IN_MAINTENANCE, "Terminating", "the kubelet has not stopped it: check the node"),
        (make_stuck_pod(), UNREACHABLE_NODE, "NodeUnreachable", "the kubelet of its node does not respond"),
        (make_stuck_pod(finalizers=["x/y"]), UNREACHABLE_NODE, "Finalizers", "finalizers x/y delay"),
        (
            make_stuck_pod(phase="Failed", volumes=CLAIM_VOLUMES),
            NODE_IN_MAINTENANCE,
            "VolumesMounted",
            "the kubelet has not unmounted the volumes bound to its PVCs data, logs: check the node",
        ),
        (
            make_stuck_pod(phase="Succeeded"),
            NODE_IN_MAINTENANCE,
            "VolumesMounted",
            "the kubelet has not unmounted its volumes: check the node",
        ),
        (make_stuck_pod(volumes=CLAIM_VOLUMES), NODE_IN_MAINTENANCE, "Terminating", "has not stopped it"),
    ],
    ids=["kubelet", "node unreachable", "finalizer", "claims", "other volumes", "containers running"],
)
def test_stuck_pod_has_reason_that_states_cause(pod: Object, node: Object, reason: str, message: str) -> None:
    """OSV-15: the reason of a stuck pod is its finalizers, an unreachable node, its volumes or the kubelet."""
    patch = build_status_patch(make_maintenance(), make_snapshot([pod], node), StatusInput(), NOW)

    assert patch is not None
    (blocked,) = patch["status"]["blockedPods"]
    assert blocked["reason"] == reason
    assert message in blocked["message"]


def test_reason_of_stuck_pod_is_kept_if_node_was_not_read() -> None:
    """Check that a stuck pod's reason and time stay the same if `status` has not read the node."""
    pod = make_stuck_pod()
    unreachable = build_status_patch(make_maintenance(), make_snapshot([pod], UNREACHABLE_NODE), StatusInput(), NOW)
    assert unreachable is not None
    maintenance = make_maintenance(unreachable["status"])
    unread = NodeSnapshot(is_cordoned_and_tainted=True, pods=[pod])

    assert build_status_patch(maintenance, unread, StatusInput(), LATER) is None
    reachable = build_status_patch(maintenance, make_snapshot([pod]), StatusInput(), LATER)
    assert reachable is not None
    assert [item["reason"] for item in reachable["status"]["blockedPods"]] == ["Terminating"]


def test_condition_states_end_of_grace_periods() -> None:
    """Check that the condition states when the last grace period ends, without those of stuck pods."""
    terminating = [
        make_pod(name, deletionTimestamp=end)
        for name, end in (("b", "2026-01-02T03:04:35Z"), ("c", "2026-01-02T03:05:05Z"))
    ]

    status = get_patched_status(make_maintenance(), make_stuck_pod(), *terminating, make_pod("d"))

    (drained,) = (item for item in status["conditions"] if item["type"] == "Drained")
    assert drained["message"] == "4 pods left, 1 of them blocked, 2 in the grace period until 03:05:05 UTC"


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_stuck_pod_from_event_has_reason_from_cluster(phase: str) -> None:
    """NMO-12: a stuck pod in an event gets the same reason and message as the same pod read from the cluster."""
    pod = trim_pod_for_drain(make_stuck_pod(phase=phase, volumes=CLAIM_VOLUMES))
    snapshot = StepSnapshot("1", is_cordoned_and_tainted=True, leaving=[pod], is_unreachable=False)
    data = json.loads(json.dumps(snapshot.as_data()))
    leaving = list(map(parse_leaving_entry, data["left"]))

    assert build_status_patch(
        make_maintenance(), NodeSnapshot(data["closed"], leaving=leaving, is_unreachable=False), StatusInput(), NOW
    ) == build_status_patch(make_maintenance(), make_snapshot([pod]), StatusInput(), NOW)
    assert "unreachable" not in data
    unreachable = StepSnapshot("1", is_cordoned_and_tainted=True, leaving=[pod], is_unreachable=True)
    assert unreachable.as_data()["unreachable"] is True


def test_transition_time_changes_only_with_the_status() -> None:
    """NMO-10: `lastTransitionTime` changes with the condition's status, not with its reason and message."""
    blocked = {"namespace": "ns", "name": "a", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    draining_maintenance = apply_status_patch(make_maintenance(), make_pod("a"))
    blocked_maintenance = apply_status_patch(
        draining_maintenance, make_pod("a"), status_input=StatusInput(blocked=[blocked]), now=LATER
    )
    drained_maintenance = apply_status_patch(blocked_maintenance, status_input=DRAINED_INPUT, now=LATER)

    assert get_condition_fields(draining_maintenance, "Drained") == ("False", "Draining", NOW_TEXT)
    assert get_condition_fields(blocked_maintenance, "Drained") == ("False", "Blocked", NOW_TEXT)
    assert get_condition_fields(drained_maintenance, "Drained") == ("True", "Drained", format_time(LATER))
    assert get_condition_fields(drained_maintenance, "Cordoned") == ("True", "Cordoned", NOW_TEXT)


def test_condition_names_failed_step_until_next_step_succeeds() -> None:
    """X-6: after a failed step, the condition has the reason StepFailed instead of Draining until a step succeeds."""
    failing = apply_status_patch(make_maintenance(), make_pod("a"), status_input=StatusInput("nodes is forbidden"))
    draining = apply_status_patch(failing, make_pod("a"), status_input=StatusInput(blocked=[]), now=LATER)

    assert get_condition_fields(failing, "Drained") == ("False", "StepFailed", NOW_TEXT)
    assert get_condition_fields(draining, "Drained") == ("False", "Draining", NOW_TEXT)


def set_drain_spec(maintenance: Object, **drain: object) -> Object:
    """Return the maintenance with this `spec.drain`."""
    return {**maintenance, "spec": {**maintenance["spec"], "drain": drain}}


def test_start_time_is_time_of_first_status_or_of_late_pod() -> None:
    """Check that `startTime` is the time of the first status write, until a pod appears on the drained node."""
    running = apply_status_patch(make_maintenance(), make_pod("a"))
    drained = apply_status_patch(running, status_input=DRAINED_INPUT, now=LATER)
    resumed = apply_status_patch(drained, make_pod("late"), now=LATER)

    starts = [item["status"]["startTime"] for item in (running, drained, resumed)]
    assert starts == [NOW_TEXT, NOW_TEXT, format_time(LATER)]


def test_passed_deadline_is_reason_of_condition_until_drain_ends() -> None:
    """Check that the condition Drained has the reason of a passed deadline, and that the phase stays Running."""
    blocked = {"namespace": "ns", "name": "a", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    begun = apply_status_patch(
        set_drain_spec(make_maintenance(), deadline="1m"), make_pod("a"), status_input=StatusInput(blocked=[blocked])
    )
    overdue = apply_status_patch(begun, make_pod("a"), now=LATER)
    drained = apply_status_patch(overdue, status_input=DRAINED_INPUT, now=LATER)

    assert get_condition_fields(begun, "Drained")[1] == "Blocked"
    assert get_condition_fields(overdue, "Drained") == ("False", "DeadlineExceeded", NOW_TEXT)
    message = "1 pod left, 1 of them blocked; not drained within the deadline of 1m"
    assert m.get_condition(overdue, "Drained")["message"] == message
    assert [item["status"]["phase"] for item in (overdue, drained)] == ["Running", "Succeeded"]
    assert get_condition_fields(drained, "Drained")[1] == "Drained"


def test_due_escalation_step_begins_only_with_pods_on_cordoned_node() -> None:
    """Check that only `drain.overdue` begins an escalation step, and only with pods on a cordoned and tainted node.

    An event about another step, such as the redelivered event of an earlier step, begins no step.
    """
    steps = [{"after": "1m", "action": "Delete"}]
    begun = apply_status_patch(set_drain_spec(make_maintenance(), escalation=steps), make_pod("a"))
    overdue, pods = StatusInput(due_step=steps[0]), [make_pod("a")]
    recorded = {"action": "Delete", "after": "1m", "time": format_time(LATER)}
    cases = (
        (make_snapshot(pods), StatusInput(), None),
        (make_snapshot(pods), StatusInput(due_step={"action": "DeleteUnready", "after": "30s"}), None),
        (make_snapshot(pods), StatusInput(due_step={"action": None, "after": None}), None),
        (make_snapshot(pods, make_node()), overdue, None),
        (make_snapshot([]), overdue, None),
        (make_snapshot(pods), overdue, recorded),
    )

    for snapshot, status_input, expected in cases:
        patch = build_status_patch(begun, snapshot, status_input, LATER)
        assert (patch or {"status": {}})["status"].get("escalation") == expected

    escalated = apply_status_patch(begun, *pods, status_input=overdue, now=LATER)
    assert build_status_patch(escalated, make_snapshot(pods), overdue, LATER) is None
    assert m.get_condition(escalated, "Drained")["message"] == (
        f"1 pod left; step Delete of the escalation since {recorded['time']}"
    )
    for without_step in (
        set_drain_spec(escalated),
        apply_status_patch(escalated, status_input=DRAINED_INPUT, now=LATER),
    ):
        assert "escalation" not in apply_status_patch(without_step, make_pod("b"), now=LATER)["status"]


def test_invalid_drain_schedule_is_last_error() -> None:
    """Check that `lastError` names an invalid field of the drain schedule unless there is a newer error."""
    maintenance = set_drain_spec(make_maintenance(), deadline="soon")

    status = get_patched_status(maintenance, make_pod("a"))
    failing_status = get_patched_status(maintenance, make_pod("a"), status_input=StatusInput("nodes is forbidden"))

    assert status["lastError"].startswith('spec.drain.deadline "soon" is not a positive duration')
    assert (status["phase"], failing_status["lastError"]) == ("Running", "nodes is forbidden")
    assert "lastError" not in get_patched_status(maintenance, status_input=DRAINED_INPUT)


def test_rejected_deletion_of_terminating_pod_is_listed_instead_of_stuck_pod() -> None:
    """Check that a terminating pod is listed once, with the rejected deletion of the escalation if there is one."""
    pod = make_pod("a", deletionTimestamp="2026-01-01T00:00:00Z")
    items = [{"namespace": "ns", "name": name, "reason": "Escalation", "message": "m"} for name in ("a", "gone")]

    status = get_patched_status(make_maintenance(), pod, status_input=StatusInput(blocked=items))

    assert [(item["name"], item["reason"]) for item in status["blockedPods"]] == [("a", "Escalation")]
    assert get_patched_status(make_maintenance(), pod)["blockedPods"][0]["reason"] == "Terminating"


def test_error_about_blocked_pods_is_cleared_if_pods_are_gone() -> None:
    """NMO-13: an event's error about blocked pods is dropped if none of these pods is still on the node."""
    blocked = {"namespace": "ns", "name": "gone", "reason": "DisruptionBudget", "message": "m", "budget": "b"}

    status = get_patched_status(
        make_maintenance(), make_pod("a"), status_input=StatusInput("ns/gone: m", blocked=[blocked])
    )

    assert (status["blockedPods"], status.get("lastError")) == ([], None)


def test_status_from_event_equals_status_from_cluster() -> None:
    """NMO-10, NMO-12: the pods in an event's snapshot give the same status as the same pods read from the cluster."""
    stuck_pod = make_pod("b", finalizers=("example.com/hold",))
    stuck_pod["metadata"]["deletionTimestamp"] = NOW_TEXT
    leaving = [make_pod("a"), stuck_pod]
    event_data = StepSnapshot("1", is_cordoned_and_tainted=True, leaving=leaving).as_data()
    snapshot = NodeSnapshot(event_data["closed"], leaving=[{"metadata": metadata} for metadata in event_data["left"]])

    assert build_status_patch(make_maintenance(), snapshot, StatusInput(), LATER) == build_status_patch(
        make_maintenance(), make_snapshot(leaving), StatusInput(), LATER
    )


@pytest.mark.parametrize(
    "target_node", [None, make_node(), make_node(cordoned=True)], ids=["gone", "not cordoned", "not tainted"]
)
def test_node_without_cordon_or_taints_is_not_cordoned(target_node: Object | None) -> None:
    """NMO-5: the condition Cordoned is True only if the node is cordoned and has the drain taints."""
    patch = build_status_patch(make_maintenance(), make_snapshot([make_pod("a")], target_node), StatusInput(), NOW)

    assert patch is not None
    condition = m.get_condition(patch, "Cordoned")
    assert (condition["status"], condition["reason"]) == ("False", "NotCordoned")


def test_maintenance_that_could_not_begin_fails() -> None:
    """NMO-19, NMO-22: a maintenance that could not begin is Failed with the error, without counts and pods."""
    status = get_patched_status(
        make_maintenance(counts=""), make_pod("a"), status_input=StatusInput(error='nodes "x" not found')
    )

    assert (status["phase"], status["lastError"]) == ("Failed", 'nodes "x" not found')
    assert "evictionPods" not in status
    assert [(condition["type"], condition["status"], condition["reason"]) for condition in status["conditions"]] == [
        ("Drained", "False", "Failed")
    ]


def test_wait_for_node_lease_is_not_failure() -> None:
    """NMO-27a: while another tool holds the node's lease, the phase is unchanged, and `lastError` names the holder."""
    status = get_patched_status(
        make_maintenance(counts=""), status_input=StatusInput("the lease is held by x", is_waiting=True)
    )

    assert "phase" not in status
    assert status["lastError"] == "the lease is held by x"
    assert get_condition_fields({"status": status}, "Drained") == ("False", "Waiting", NOW_TEXT)


@pytest.mark.parametrize(
    ("previous_errors", "reported_errors", "count"),
    [(None, 1, 1), (2, None, 2), (2, 3, 3), (3, 0, None)],
    ids=["first", "not reported", "next", "renewed"],
)
def test_consecutive_failed_lease_renewals_are_counted(
    previous_errors: int | None, reported_errors: int | None, count: int | None
) -> None:
    """NMO-27a: while `errorOnLeaseCount` is set, the status keeps the renewal error even in phase Succeeded."""
    maintenance = make_maintenance(
        {
            "phase": m.SUCCEEDED,
            "errorOnLeaseCount": previous_errors,
            "lastError": "held by x" if previous_errors else None,
        }
    )
    status = get_patched_status(
        maintenance, status_input=StatusInput("held by x" if reported_errors else "", lease_error_count=reported_errors)
    )

    assert (status["phase"], status.get("errorOnLeaseCount")) == (m.SUCCEEDED, count)
    assert status.get("lastError") == ("held by x" if count else None)


@pytest.mark.parametrize(("previous_errors", "reported_errors"), [(None, 2), (None, 4), (1, 4), (3, 1)])
def test_late_lease_renewal_error_is_ignored(previous_errors: int | None, reported_errors: int) -> None:
    """X-2: a late event with an unexpected number of failed renewals changes neither the count nor the error."""
    maintenance = make_maintenance({"phase": m.RUNNING, "errorOnLeaseCount": previous_errors})

    assert (
        build_status_patch(
            maintenance, make_snapshot([make_pod()]), StatusInput("late", lease_error_count=reported_errors), NOW
        )
        is None
    )


@pytest.mark.parametrize("phase", [m.RUNNING, m.SUCCEEDED])
@pytest.mark.parametrize("is_waiting", [True, False])
def test_error_of_begin_is_ignored_after_maintenance_has_begun(phase: str, is_waiting: bool) -> None:
    """X-2: after the maintenance has begun, a late event about an earlier failure of `begin` changes nothing.

    A failed lease renewal still counts, because the node's lease must be renewed even after the drain.
    """
    maintenance, pods = make_maintenance({"phase": phase}), [make_pod()] if phase == m.RUNNING else []

    status_input = StatusInput("taken", is_lease_renewal_error=True, is_begin_error=True, is_waiting=is_waiting)
    assert build_status_patch(maintenance, make_snapshot(pods), status_input, NOW) is None
    assert (
        get_patched_status(maintenance, *pods, status_input=StatusInput("forbidden", is_lease_renewal_error=True))[
            "lastError"
        ]
        == "forbidden"
    )


def test_fourth_failed_lease_renewal_fails_maintenance_permanently() -> None:
    """NMO-27a: after four failed renewals, the phase is Failed with the documented error, and the status is final."""
    blocked = [{"namespace": "ns", "name": "pod", "reason": "DisruptionBudget", "message": "m"}]
    after_third = apply_status_patch(
        make_maintenance({"errorOnLeaseCount": 2}),
        make_pod(),
        status_input=StatusInput("x", blocked=blocked, lease_error_count=3),
    )
    after_fourth = apply_status_patch(after_third, make_pod(), status_input=StatusInput("x", lease_error_count=4))

    assert (after_fourth["status"]["phase"], after_fourth["status"]["errorOnLeaseCount"]) == (m.FAILED, 4)
    error = "maintenance failed: lease could not be extended after 4 attempts"
    assert after_fourth["status"]["lastError"] == error
    remedy = "to continue, delete this object and create it again after the other tool has released the lease"
    condition_fields = {"status": "False", "observedGeneration": 1, "lastTransitionTime": NOW_TEXT}
    assert after_fourth["status"]["conditions"] == [
        {
            **condition_fields,
            "type": "Cordoned",
            "reason": "GivenBack",
            "message": "another tool holds the node's lease",
        },
        {**condition_fields, "type": "Drained", "reason": "Failed", "message": f"{error}; {remedy}"},
    ]
    pod_fields = ("pendingPods", "pendingPodsRefs", "pendingCount", "blockedPods")
    assert all(after_third["status"][name] for name in pod_fields)
    assert not any(after_fourth["status"][name] for name in pod_fields)
    for status_input in (
        StatusInput(),
        DRAINED_INPUT,
        StatusInput(lease_error_count=0),
        StatusInput("x", lease_error_count=5),
    ):
        assert build_status_patch(after_fourth, make_snapshot([]), status_input, NOW) is None


def test_maintenance_that_has_not_begun_or_is_deleted_gets_no_status_patch() -> None:
    """X-2: there is no patch for a maintenance that has not begun and has no error, or that is being deleted."""
    deleted = make_maintenance()
    deleted["metadata"]["deletionTimestamp"] = NOW_TEXT

    assert build_status_patch(make_maintenance(counts=""), make_snapshot([make_pod()]), StatusInput(), NOW) is None
    assert build_status_patch(deleted, make_snapshot([make_pod()]), StatusInput(error="x"), NOW) is None


def test_deleted_maintenance_reports_only_restore_error() -> None:
    """NMO-13: while a maintenance is being deleted, the status reports once why the node could not be restored."""
    deleted = make_maintenance()
    deleted["metadata"]["deletionTimestamp"] = NOW_TEXT
    status_input = StatusInput(error="forbidden", is_restore_error=True)

    patch = build_status_patch(deleted, make_snapshot([make_pod()]), status_input, NOW)

    assert patch is not None
    written_fields = {key: value for key, value in patch["status"].items() if key != "lastUpdate"}
    assert written_fields == {"lastError": "the node is not restored: forbidden"}
    deleted["status"] = patch["status"]
    assert build_status_patch(deleted, make_snapshot([make_pod()]), status_input, LATER) is None


pending_name_sets = st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=8), max_size=10)


@given(pending_name_sets, st.booleans())
def test_status_invariants_hold_for_any_sequence(pod_name_sets: list[set[str]], is_drained: bool) -> None:
    """NMO-10, NMO-11, NMO-12: progress never decreases, counts are fixed, and Succeeded requires no pending pod."""
    maintenance, progress_before = make_maintenance(), 0
    for names in pod_name_sets:
        pods = [make_pod(name) for name in sorted(names)]
        patch = build_status_patch(maintenance, make_snapshot(pods), StatusInput(is_drained=is_drained), NOW)
        maintenance = {
            **maintenance,
            "status": {**(maintenance.get("status") or {}), **(patch["status"] if patch else {})},
        }
        status = maintenance["status"]
        assert status["drainProgress"] >= progress_before
        assert (status["evictionPods"], status["totalpods"]) == (5, 9)
        assert status["pendingPods"] == sorted(names)
        assert (status["phase"] == "Succeeded") <= (not names and is_drained)
        assert build_status_patch(maintenance, make_snapshot(pods), StatusInput(is_drained=is_drained), LATER) is None
        progress_before = status["drainProgress"]


MAX_ETCD_OBJECT_BYTES = 1536 * 1024
LONGEST_NAME = "x" * 253
HUGE_TEXT = "ü" * 1_000_000


def make_many_blocked_pods(count: int) -> tuple[list[Object], StatusInput]:
    """Return pods with names of maximum length, and a `StatusInput` that blocks all of them with long messages."""
    pods = [make_pod(f"{number:05}{LONGEST_NAME}"[:253], namespace=LONGEST_NAME[:63]) for number in range(count)]
    blocked = [
        {
            **{key: pod["metadata"][key] for key in ("namespace", "name")},
            "reason": "Error",
            "message": HUGE_TEXT[:4000],
        }
        for pod in pods
    ]
    return pods, StatusInput(error=HUGE_TEXT, blocked=blocked)


@pytest.mark.parametrize(("count", "min_pending", "min_blocked"), [(250, 250, 200), (500, 500, 200), (3000, 600, 200)])
def test_status_of_many_pods_fits_into_etcd(count: int, min_pending: int, min_blocked: int) -> None:
    """NMO-12: long lists are truncated to the size limit, and the status states how many entries are omitted."""
    pods, status_input = make_many_blocked_pods(count)

    status = get_patched_status(make_maintenance(), *pods, status_input=status_input)

    assert len(json.dumps(status, ensure_ascii=False).encode()) < MAX_ETCD_OBJECT_BYTES
    assert status["pendingCount"] == count
    assert len(status["pendingPods"]) == len(status["pendingPodsRefs"]) >= min_pending
    assert len(status["blockedPods"]) >= min_blocked
    message = m.get_condition({"status": status}, "Drained")["message"]
    assert message.startswith(f"{count} pods left, {count} of them blocked")
    assert f"{count - len(status['blockedPods'])} more than blockedPods lists" in message
    assert ("more than pendingPods lists" in message) is (len(status["pendingPods"]) < count)


def test_long_last_error_is_truncated() -> None:
    """NMO-13: a long `lastError` is truncated at its end, even before the maintenance begins."""
    for maintenance in (make_maintenance(), make_maintenance(counts="")):
        error = get_patched_status(maintenance, make_pod("a"), status_input=StatusInput(error=HUGE_TEXT))["lastError"]
        assert error.startswith("üüü")
        assert error.endswith("more characters)")
        assert len(error) < 10_000


@pytest.mark.parametrize("invalid_value", ["yesterday", "2026-01-02T03:04:05.5+00:00", 7, None])
def test_invalid_status_from_another_client_is_replaced(invalid_value: object) -> None:
    """NMO-12: invalid values that another client wrote to the status are replaced by valid ones."""
    invalid_entry = {"namespace": "ns", "name": "a", "reason": "Error", "since": invalid_value, "more": {"x": 1}}
    invalid_status = {
        "drainProgress": "half" if invalid_value == 7 else 250,
        "blockedPods": [invalid_entry, "x"],
        "lastUpdate": invalid_value,
    }

    status = get_patched_status(make_maintenance(invalid_status), make_pod("a"))

    assert status["blockedPods"][0]["since"] == NOW_TEXT
    assert 0 <= status["drainProgress"] <= 100
