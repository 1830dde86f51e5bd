"""Tests for the one-line summary of blocked pods, and for the backoff before their next eviction (design rule 9)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.budgets import BlockedPod
from kube.maintenance.blocked_pods import (
    MAX_BACKOFF,
    MIN_BACKOFF,
    add_retry_after,
    compute_backoff,
    format_summary,
    is_backing_off,
    split_due_pods,
)
from kube.paths import Object
from kube.pods import tolerates, tolerates_everything
from kube.times import format_time
from tests.kube.samples import make_maintenance, make_pod

CORDONED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
TOLERATE_ALL = [{"operator": "Exists"}]
MAINTENANCE_TOLERATIONS = [
    {"key": key, "operator": "Exists"} for key in ("medik8s.io/drain", "node.kubernetes.io/unschedulable")
]


def make_cordoned_maintenance(*blocked: Object, cordoned_status: str = "True") -> Object:
    """Return a maintenance whose node has been cordoned since `CORDONED_AT`."""
    condition = {"type": "Cordoned", "status": cordoned_status, "lastTransitionTime": format_time(CORDONED_AT)}
    return make_maintenance({"conditions": [condition], "blockedPods": list(blocked)})


def make_recreated_pod(
    seconds_after_cordon: float = 5, tolerations: list[Object] = TOLERATE_ALL, owner: str = "ReplicaSet"
) -> Object:
    """Return a pod that was created this many seconds after the cordon."""
    pod = make_pod(
        "web", owner=owner, creationTimestamp=format_time(CORDONED_AT + timedelta(seconds=seconds_after_cordon))
    )
    return {**pod, "spec": {"tolerations": tolerations}}


@given(st.integers(0, 10_000))
def test_eviction_backoff_is_bounded_and_never_shrinks(seconds: int) -> None:
    """Check that the backoff stays between `MIN_BACKOFF` and `MAX_BACKOFF`, and never shrinks as time passes."""
    elapsed = timedelta(seconds=seconds)

    assert MIN_BACKOFF <= compute_backoff(elapsed) <= MAX_BACKOFF
    assert compute_backoff(elapsed) <= compute_backoff(elapsed + timedelta(seconds=1))


def test_recreated_pod_is_evicted_less_and_less_often() -> None:
    """Check that the backoff of a pod that is always recreated within a second grows.

    The pod is evicted at most four times in the first minute, and at most twice in each later minute.
    """
    evictions, now = [0.0], 0.0
    while now < 600:
        recreated_at = now + 1
        now = recreated_at + compute_backoff(timedelta(seconds=recreated_at)).total_seconds()
        evictions.append(now)

    assert sum(second < 60 for second in evictions) <= 4
    assert all(sum(minute <= second < minute + 60 for second in evictions) <= 2 for minute in range(60, 540, 60))


@pytest.mark.parametrize(("seconds", "is_due"), [(14, False), (15, True)])
def test_recreated_pod_is_evicted_after_its_backoff(seconds: int, is_due: bool) -> None:
    """Check that a pod created 5 s after the cordon is evicted only when it is 10 s old."""
    due, blocked_pods = split_due_pods(
        [make_recreated_pod(5)], make_cordoned_maintenance(), CORDONED_AT + timedelta(seconds=seconds)
    )

    assert bool(due) is is_due
    assert [blocked.retry_after for blocked in blocked_pods] == ([] if is_due else ["2026-01-02T03:04:20Z"])


def test_maintenance_creation_counts_as_cordon_time_if_the_node_is_uncordoned() -> None:
    """Check that the maintenance's creation counts as the time of the cordon if the status reports no cordon.

    If the condition Cordoned is False, its transition time is not the time of the cordon.
    """
    maintenance = make_cordoned_maintenance(cordoned_status="False")
    maintenance["metadata"]["creationTimestamp"] = format_time(CORDONED_AT - timedelta(seconds=10))

    _, blocked_pods = split_due_pods([make_recreated_pod(-5)], maintenance, CORDONED_AT)

    assert [blocked.reason for blocked in blocked_pods] == ["Returns"]


def test_maintenance_creation_replaces_a_cordon_time_in_the_future() -> None:
    """Check that the maintenance's creation time, which the API server sets, replaces a cordon time in the future."""
    maintenance = make_cordoned_maintenance()
    maintenance["metadata"]["creationTimestamp"] = format_time(CORDONED_AT)
    maintenance["status"]["conditions"][0]["lastTransitionTime"] = format_time(CORDONED_AT + timedelta(minutes=5))

    due, blocked_pods = split_due_pods([make_recreated_pod(5)], maintenance, CORDONED_AT + timedelta(seconds=6))

    assert (due, [blocked.reason for blocked in blocked_pods]) == ([], ["Returns"])


def test_changed_spec_ends_eviction_backoff() -> None:
    """DRN-1a: a changed spec ends the backoff of earlier rejections."""
    refused_pod = {
        "namespace": "ns",
        "name": "a",
        "reason": "Forbidden",
        "retryAfter": format_time(CORDONED_AT + MAX_BACKOFF),
    }
    maintenance = {**make_cordoned_maintenance({**refused_pod, "since": format_time(CORDONED_AT)})}
    condition = {"type": "Drained", "status": "False", "observedGeneration": 1}
    maintenance["status"]["conditions"].append(condition)
    changed_maintenance = {**maintenance, "metadata": {**maintenance["metadata"], "generation": 2}}

    assert [
        bool(split_due_pods([make_pod("a")], current_maintenance, CORDONED_AT)[0])
        for current_maintenance in (maintenance, changed_maintenance)
    ] == [False, True]


@pytest.mark.parametrize(("delay", "is_pod_blocked"), [(MAX_BACKOFF, True), (timedelta(hours=1), False)])
def test_implausibly_long_eviction_backoff_is_ignored(delay: timedelta, is_pod_blocked: bool) -> None:
    """Design rule 11: a retry time far in the future, written before a clock was set back, causes no backoff."""
    refused_pod = {"namespace": "ns", "name": "a", "reason": "Error", "retryAfter": format_time(CORDONED_AT + delay)}

    assert (
        bool(split_due_pods([make_pod("a")], make_cordoned_maintenance(refused_pod), CORDONED_AT)[1]) is is_pod_blocked
    )


def test_recreated_pod_is_blocked_with_reason_and_remedy() -> None:
    _, (blocked,) = split_due_pods([make_recreated_pod()], make_cordoned_maintenance(), CORDONED_AT)

    assert blocked.reason == "Returns"
    assert blocked.message == (
        "tolerates every taint, so ReplicaSet replicaset recreates it on this node: remove the toleration, "
        "or scale the controller down"
    )
    assert blocked.as_data()["retryAfter"] == "2026-01-02T03:04:20Z"
    _, (blocked_by_exact_toleration,) = split_due_pods(
        [make_recreated_pod(tolerations=MAINTENANCE_TOLERATIONS)], make_cordoned_maintenance(), CORDONED_AT
    )
    assert blocked_by_exact_toleration.message.startswith("tolerates the taints of the maintenance, so ")


@pytest.mark.parametrize("tolerations", [[], MAINTENANCE_TOLERATIONS[:1]], ids=["none", "one"])
def test_recreated_pod_with_node_name_in_template_is_in_backoff(tolerations: list[Object]) -> None:
    """Design rule 9: a recreated pod with `nodeName` in its template is in backoff, even without tolerations."""
    due, (blocked,) = split_due_pods(
        [make_recreated_pod(2, tolerations)], make_cordoned_maintenance(), CORDONED_AT + timedelta(seconds=3)
    )

    assert (due, blocked.reason) == ([], "Returns")
    assert blocked.message == (
        "was created on this node after the cordon, or while another client had uncordoned the node; if the pod "
        "template of ReplicaSet replicaset, or of its owner, sets spec.nodeName, remove that field, "
        "or scale the owner down"
    )


@pytest.mark.parametrize(
    ("other_pod", "drained_maintenance"),
    [
        pytest.param(make_recreated_pod(-1), make_cordoned_maintenance(), id="created before the cordon"),
        pytest.param(make_recreated_pod(owner=""), make_cordoned_maintenance(), id="no controller"),
        pytest.param(
            make_recreated_pod(1, tolerations=[]),
            make_cordoned_maintenance(),
            id="may have been scheduled before the cordon",
        ),
        pytest.param(
            make_recreated_pod(tolerations=[]),
            make_cordoned_maintenance(cordoned_status="False"),
            id="node may have been schedulable",
        ),
        pytest.param(
            make_recreated_pod(1, tolerations=MAINTENANCE_TOLERATIONS[:1]),
            make_cordoned_maintenance(),
            id="tolerates one taint",
        ),
        pytest.param(make_recreated_pod(), make_maintenance({}), id="no times yet"),
    ],
)
def test_pods_that_were_not_recreated_are_evicted_immediately(other_pod: Object, drained_maintenance: Object) -> None:
    """Check that a pod that was not recreated on the node is evicted immediately, even if another pod is in backoff."""
    recreated_pod = make_recreated_pod()
    recreated_pod["metadata"]["name"] = "back"

    due, _ = split_due_pods([recreated_pod, other_pod], drained_maintenance, CORDONED_AT)

    assert other_pod in due


def test_maintenance_creation_counts_as_cordon_time_before_the_first_status() -> None:
    """Check that the maintenance's creation counts as the time of the cordon while there is no status."""
    maintenance = make_cordoned_maintenance(cordoned_status="False")
    maintenance["metadata"]["creationTimestamp"] = format_time(CORDONED_AT)

    assert [blocked.reason for blocked in split_due_pods([make_recreated_pod()], maintenance, CORDONED_AT)[1]] == [
        "Returns"
    ]


def test_pod_whose_eviction_was_denied_waits_until_retry_time() -> None:
    """Check that a pod whose eviction a policy denied is in backoff until the retry time in the status."""
    refused_pod = {
        "namespace": "ns",
        "name": "a",
        "reason": "Forbidden",
        "message": "no",
        "retryAfter": "2026-01-02T03:05:00Z",
    }
    before_retry = datetime(2026, 1, 2, 3, 4, 59, tzinfo=timezone.utc)

    due, (blocked,) = split_due_pods(
        [make_pod("a"), make_pod("b")], make_cordoned_maintenance(refused_pod), before_retry
    )

    assert [pod["metadata"]["name"] for pod in due] == ["b"]
    assert (blocked.reason, blocked.message, blocked.retry_after) == ("Forbidden", "no", "2026-01-02T03:05:00Z")
    assert (
        len(
            split_due_pods(
                [make_pod("a")], make_cordoned_maintenance(refused_pod), before_retry + timedelta(seconds=1)
            )[0]
        )
        == 1
    )


def test_terminating_pod_is_not_blocked() -> None:
    """Check that a terminating pod is not blocked, even if the status reports an earlier rejection."""
    terminating_pod = make_pod("a", deletionTimestamp="2026-01-02T03:04:00Z")
    refused_pod = {"namespace": "ns", "name": "a", "reason": "Error", "retryAfter": "2026-01-02T03:05:00Z"}

    assert split_due_pods([terminating_pod], make_cordoned_maintenance(refused_pod), CORDONED_AT) == (
        [terminating_pod],
        [],
    )


@pytest.mark.parametrize(
    ("earlier_refusals", "backoff_seconds"),
    [([], 10), ([("Error", 30)], 30), ([("Error", 3000)], 60), ([("NoAnswer", 30)], 10), ([("Escalation", 30)], 30)],
    ids=["new", "refused for 30 s", "refused for long", "different reason before", "deletion was refused before"],
)
def test_retry_time_grows_with_duration_of_rejection(
    earlier_refusals: list[tuple[str, int]], backoff_seconds: int
) -> None:
    """Check that the backoff grows with the time for which the pod's eviction has been rejected for this reason."""
    earlier_blocked_pods = [
        {
            "namespace": "ns",
            "name": "a",
            "reason": reason,
            "since": format_time(CORDONED_AT - timedelta(seconds=seconds)),
        }
        for reason, seconds in earlier_refusals
    ]
    blocked_pod = BlockedPod({"namespace": "ns", "name": "a", "uid": "u"}, "Error", "no")

    (updated_pod,) = add_retry_after([blocked_pod], make_cordoned_maintenance(*earlier_blocked_pods), CORDONED_AT)

    assert updated_pod.retry_after == format_time(CORDONED_AT + timedelta(seconds=backoff_seconds))


@pytest.mark.parametrize("reason", ["DisruptionBudget", "MultipleBudgets"])
def test_pod_blocked_by_pdb_has_no_retry_time(reason: str) -> None:
    blocked_pod = BlockedPod({"namespace": "ns", "name": "a", "uid": "u"}, reason, "no")

    assert add_retry_after([blocked_pod], make_cordoned_maintenance(), CORDONED_AT) == [blocked_pod]


@pytest.mark.parametrize(
    ("toleration", "tolerates_taint", "tolerates_all"),
    [
        ({"operator": "Exists"}, True, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False, True),
        ({"key": "a", "operator": "Exists"}, True, False),
        ({"key": "a", "operator": "Equal", "value": ""}, True, False),
        ({"key": "a"}, True, False),
        ({"key": "a", "value": "x"}, False, False),
        ({"key": "b", "operator": "Exists"}, False, False),
        ({"key": "a", "operator": "Exists", "effect": "NoExecute"}, False, False),
    ],
)
def test_tolerations_match_taints_as_in_scheduler(
    toleration: Object, tolerates_taint: bool, tolerates_all: bool
) -> None:
    pod = {"metadata": {}, "spec": {"tolerations": [toleration]}}

    assert (tolerates(pod, "a", "NoSchedule"), tolerates_everything(pod)) == (tolerates_taint, tolerates_all)


@pytest.mark.parametrize(
    ("seconds_since_first", "seconds_since_last", "expects_backoff"),
    [
        (9, 9, True),
        (10, 10, False),
        (50, 29, False),
        (50, 10, True),
        (100, 41, True),
        (3600, 59, True),
        (3600, 60, False),
    ],
    ids=[
        "a moment ago",
        "ten seconds ago",
        "backoff ended",
        "backoff at its maximum",
        "repeated",
        "for a minute",
        "no longer",
    ],
)
def test_backoff_of_repeated_node_repairs_grows(
    seconds_since_first: int, seconds_since_last: int, expects_backoff: bool
) -> None:
    """Design rule 9: the backoff equals the time since a repair was first needed, from ten seconds to a minute.

    A repair that no Event records has no backoff.
    """
    event = {
        name: format_time(CORDONED_AT - timedelta(seconds=seconds))
        for name, seconds in (("firstTimestamp", seconds_since_first), ("lastTimestamp", seconds_since_last))
    }

    assert is_backing_off(event, CORDONED_AT) is expects_backoff
    assert not is_backing_off(None, CORDONED_AT)


@pytest.mark.parametrize("invalid_time", ["soon", 7, None, {}])
def test_invalid_retry_time_is_ignored(invalid_time: object) -> None:
    """X-6: invalid times of another client cause no backoff, and the next rejection gets the shortest backoff."""
    refused_pod = {
        "namespace": "ns",
        "name": "pod",
        "reason": "Error",
        "retryAfter": invalid_time,
        "since": invalid_time,
    }
    due, blocked = split_due_pods([make_pod()], make_cordoned_maintenance(refused_pod), CORDONED_AT)
    (refused_again,) = add_retry_after(
        [BlockedPod({"namespace": "ns", "name": "pod", "uid": "u"}, "Error", "m")],
        make_cordoned_maintenance(refused_pod),
        CORDONED_AT,
    )

    assert (len(due), blocked) == (1, [])
    assert refused_again.retry_after == format_time(CORDONED_AT + MIN_BACKOFF)
    assert not is_backing_off({"firstTimestamp": invalid_time, "lastTimestamp": invalid_time}, CORDONED_AT)


def test_retry_time_in_another_time_zone_is_converted() -> None:
    """X-6: a retry time in another time zone is converted."""
    refused_pod = {"namespace": "ns", "name": "pod", "reason": "Error", "retryAfter": "2026-01-02T05:04:06.5+02:00"}

    assert split_due_pods([make_pod()], make_cordoned_maintenance(refused_pod), CORDONED_AT)[0] == []
    assert (
        split_due_pods([make_pod()], make_cordoned_maintenance(refused_pod), CORDONED_AT + timedelta(seconds=1))[1]
        == []
    )


def test_cordon_time_in_year_9999_is_ignored() -> None:
    """Check that a cordon time in the year 9999 is ignored; another client may have written it."""
    maintenance = make_cordoned_maintenance()
    maintenance["status"]["conditions"][0]["lastTransitionTime"] = "9999-12-31T23:59:59Z"

    assert split_due_pods([make_recreated_pod()], maintenance, CORDONED_AT)[1] == []


def test_event_time_in_year_9999_is_ignored() -> None:
    """Check that an Event from the year 9999, which any client may have written, is ignored."""
    event = {"firstTimestamp": format_time(CORDONED_AT), "lastTimestamp": "9999-12-31T23:59:59Z"}

    assert not is_backing_off(event, CORDONED_AT)


BUDGET_MESSAGE = "The disruption budget keep needs 3 healthy pods and has 3 currently"


def make_blocked_pod(name: str, message: str = BUDGET_MESSAGE) -> BlockedPod:
    return BlockedPod({"namespace": "ns", "name": name, "uid": name}, "DisruptionBudget", message)


def test_summary_of_five_pods_has_no_remainder() -> None:
    """NMO-13: a summary of five pods mentions no further pods."""
    assert "more" not in format_summary([make_blocked_pod(name) for name in "edcba"])


def test_summary_names_five_pods_by_message() -> None:
    """NMO-13: the summary for `lastError` is one line that names five pods, grouped by message."""
    other_pods = [make_blocked_pod(name) for name in "gfedca"]
    line = format_summary([*other_pods, make_blocked_pod("b", "slow down")])

    assert line == f"ns/a, ns/c, ns/d, ns/e: {BUDGET_MESSAGE}; ns/b: slow down; and 2 more"
    assert format_summary([]) == ""
