"""Tests for evictions with an unknown outcome (no response, conflict, busy server) and for replies of `evict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.http_binding import decode_event, encode_binary
from functions.event_data import require_data
from functions.maintenance.evict import NO_TIME_MESSAGE, OWN_POD_MESSAGE, split_retried_and_blocked_pods
from functions.maintenance.eviction_reports import build_evicted_data
from kube.budgets import BlockedPod
from kube.evictions.executor import EvictionOutcome
from kube.maintenance.node_snapshot import StepSnapshot
from kube.maintenance.status_patch import MAX_ERROR_CHARACTERS
from kube.paths import Object
from kube.text_limits import truncate
from tests.kube.samples import make_maintenance, make_pod

NEW_MAINTENANCE = make_maintenance({})


def build_blocked_pod(name: str, reason: str) -> BlockedPod:
    return BlockedPod({"namespace": "ns", "name": name, "uid": f"ns-{name}-uid"}, reason, "why")


def build_maintenance_with_blocked_pod(name: str, reason: str) -> Object:
    """Build a maintenance whose status reports a pod with this name as blocked for this reason."""
    return make_maintenance({"blockedPods": [{"namespace": "ns", "name": name, "reason": reason}]})


@pytest.mark.parametrize("reason", ["NoAnswer", "Changing", "Busy"])
def test_eviction_with_unknown_outcome_is_retried_if_another_pod_was_evicted(reason: str) -> None:
    """Check that an eviction with unknown outcome is retried if another pod was evicted, and does not block its pod."""
    outcome, needs_another_pass = split_retried_and_blocked_pods(
        EvictionOutcome(
            evicted=[{"uid": "x"}], blocked=[build_blocked_pod("a", reason), build_blocked_pod("b", "Error")]
        ),
        NEW_MAINTENANCE,
    )

    assert needs_another_pass
    assert [pod.reason for pod in outcome.blocked] == ["Error"]


@pytest.mark.parametrize("reason", ["NoAnswer", "Changing", "Busy"])
def test_pod_with_unknown_eviction_outcome_is_blocked_if_no_pod_was_evicted(reason: str) -> None:
    """Check that a pod whose eviction has an unknown outcome is blocked if the batch evicted no other pod."""
    outcome = EvictionOutcome(blocked=[build_blocked_pod("a", reason)])

    assert split_retried_and_blocked_pods(outcome, NEW_MAINTENANCE) == (outcome, False)


def test_blocked_pod_stays_blocked_if_other_pod_is_evicted() -> None:
    """Check that a blocked pod stays blocked while other pods are evicted, so that its backoff grows."""
    outcome = EvictionOutcome(evicted=[{"uid": "x"}], blocked=[build_blocked_pod("a", "NoAnswer")])

    assert split_retried_and_blocked_pods(outcome, build_maintenance_with_blocked_pod("a", "NoAnswer")) == (
        outcome,
        False,
    )


def test_deferred_pod_is_retried_only_if_another_pod_left() -> None:
    """Check that a deferred pod is blocked with the reason NoTime, unless other pods have left the node."""
    with_progress = EvictionOutcome(already_gone=[{"uid": "x"}], deferred=[make_pod("a")])
    without_progress, needs_another_pass = split_retried_and_blocked_pods(
        EvictionOutcome(deferred=[make_pod("a")]), NEW_MAINTENANCE
    )

    assert split_retried_and_blocked_pods(with_progress, NEW_MAINTENANCE) == (with_progress, True)
    assert not needs_another_pass
    assert [(blocked.pod["name"], blocked.reason) for blocked in without_progress.blocked] == [("a", "NoTime")]


def test_pod_in_which_evict_runs_is_blocked_with_separate_message() -> None:
    """Check that the pod in which `evict` runs is blocked with the message `OWN_POD_MESSAGE`."""
    outcome, needs_another_pass = split_retried_and_blocked_pods(
        EvictionOutcome(deferred=[make_pod("a"), make_pod("b")]), NEW_MAINTENANCE, "b"
    )

    assert not needs_another_pass
    assert [pod.message for pod in outcome.blocked] == [NO_TIME_MESSAGE, OWN_POD_MESSAGE]


def test_eviction_in_flight_causes_no_further_pass() -> None:
    """Check that `evict` requests another pass for a deferred pod, but not for an eviction in flight."""
    in_flight = EvictionOutcome(in_flight=[{"uid": "x"}])
    with_deferred_pod = EvictionOutcome(in_flight=[{"uid": "x"}], deferred=[make_pod("a")])

    assert split_retried_and_blocked_pods(in_flight, NEW_MAINTENANCE) == (in_flight, False)
    assert split_retried_and_blocked_pods(with_deferred_pod, NEW_MAINTENANCE) == (with_deferred_pod, True)


REFERENCE = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "nm-uid")
HINT = events.build_event(events.BUDGET_OPENED, "test", REFERENCE, "node-1")


def build_reply(
    *evicted_uids: str, blocked: Sequence[Object] = (), error: str = "", more: bool = False
) -> BaseCloudEvent:
    """Build the reply of `evict` for one batch."""
    data: dict[str, Any] = {"evicted": [{"uid": uid} for uid in evicted_uids], "blocked": list(blocked), "error": error}
    flags = ("more",) if more else ()
    return events.build_event(events.PODS_EVICTED, "evict", REFERENCE, "node-1", cause=HINT, data=data, flags=flags)


def build_rejected_eviction(uid: str, message: str, **extra_fields: str) -> Object:
    return {"uid": uid, "message": message, **extra_fields}


def test_reply_omits_rejected_evictions_beyond_event_size_limit() -> None:
    """X-6: a reply omits rejected evictions that would make the event larger than the size limit."""
    long_message = "\N{PILE OF POO}" * 1024
    pods = [{"namespace": "ns", "name": f"pod-{number}", "uid": str(number)} for number in range(660)]
    data = build_evicted_data(
        EvictionOutcome(blocked=[BlockedPod(pod, "Error", long_message) for pod in pods]), "1", "1"
    )

    message = encode_binary(build_reply(blocked=data["blocked"], error=data["error"]))

    blocked_pods = require_data(decode_event(message.headers, message.body))["blocked"]
    assert [pod["uid"] for pod in blocked_pods] == sorted(pod["uid"] for pod in blocked_pods)
    assert 50 < len(blocked_pods) < len(pods)
    assert data["error"] == truncate(data["error"], MAX_ERROR_CHARACTERS)


def test_blocked_pods_in_event_are_independent_of_rejection_order() -> None:
    """Design rule 9: an event of limited size contains the same blocked pods for any order of rejections."""
    long_message = "\N{PILE OF POO}" * 1024
    blocked = [
        BlockedPod({"namespace": "ns", "name": f"pod-{number:03}", "uid": str(number)}, "Error", long_message)
        for number in range(330)
    ]

    in_order, reversed_order = (
        build_evicted_data(EvictionOutcome(blocked=order), "1", "1")["blocked"] for order in (blocked, blocked[::-1])
    )

    assert in_order == reversed_order
    assert len(in_order) < len(blocked)


def test_snapshot_omits_oversized_pods() -> None:
    """X-6: the snapshot in an event omits the field `left` if the pods' finalizers exceed the event's size limit."""
    oversized_pods = [make_pod("a", finalizers=[f"example.com/{'x' * 60}"] * 6000)]

    assert (
        "left"
        not in StepSnapshot.from_maintenance(
            make_maintenance(), is_cordoned_and_tainted=True, leaving=oversized_pods
        ).as_data()
    )
    assert (
        "left"
        in StepSnapshot.from_maintenance(
            make_maintenance(), is_cordoned_and_tainted=True, leaving=[make_pod("a")]
        ).as_data()
    )
