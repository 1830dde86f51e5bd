"""Tests that only a persistent failure of a step is reported, and no failure of a replay (design rule 11)."""

from __future__ import annotations

import itertools
from typing import cast

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events, extensions
from eventing.events import ObjectReference
from functions.event_data import require_data
from functions.failures import Retry, raise_retry
from functions.maintenance.event_objects import build_step_failed
from functions.serving import failure_tracker
from functions.serving.failure_tracker import MAX_TRACKED_EVENTS, FailureTracker
from functions.serving.function_runner import FunctionRunner
from functions.steps import FailureHandler, Function
from kube.client.sync_client import SyncClient
from tests.functions.event_builders import build_resource_event
from tests.functions.test_work_queue import FIRST_MAINTENANCE, OTHER_MAINTENANCE, build_hint
from tests.kube.samples import make_maintenance

NO_CLIENT = cast("SyncClient", None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list with the current time in seconds, which the test sets."""
    now = [0.0]
    monkeypatch.setattr(f"{failure_tracker.__name__}.time.monotonic", lambda: now[0])
    return now


def fail_with_retry(_event: BaseCloudEvent, _client: SyncClient) -> list[BaseCloudEvent]:
    raise Retry("busy")


def build_drift_event(
    number: int = 0,
    event_type: str = events.NODE_DRIFTED,
    maintenance_reference: ObjectReference = FIRST_MAINTENANCE,
    node: str = "node-1",
) -> BaseCloudEvent:
    return events.build_event(event_type, "resync", maintenance_reference, node, seed=f"{number}{node}")


def build_runner(on_failure: FailureHandler = build_step_failed) -> FunctionRunner:
    return FunctionRunner(Function("cordon", fail_with_retry, (), (), on_failure=on_failure))


def test_persistent_failure_is_reported_after_half_a_minute(clock: list[float]) -> None:
    """X-6: A failing step raises `Retry` for half a minute, and then emits `maintenance.step_failed` with the error."""
    runner, event = build_runner(), build_hint()
    for clock[0] in (0.0, 15.0, 29.9):
        with pytest.raises(Retry):
            runner.invoke(event, NO_CLIENT)
    clock[0] = 30.0

    (failure_event,) = runner.invoke(event, NO_CLIENT)

    assert (failure_event.get_type(), require_data(failure_event)["error"]) == (events.MAINTENANCE_STEP_FAILED, "busy")


@pytest.mark.parametrize(
    ("seconds_later", "next_event", "has_succeeded", "is_reported"),
    [
        pytest.param(0.0, build_drift_event(1), False, True, id="immediately"),
        pytest.param(120.0, build_drift_event(1), False, True, id="two minutes later"),
        pytest.param(120.1, build_drift_event(1), False, False, id="after more than two minutes"),
        pytest.param(0.0, build_drift_event(1), True, False, id="succeeded in between"),
        pytest.param(
            0.0, build_drift_event(maintenance_reference=OTHER_MAINTENANCE), False, False, id="another maintenance"
        ),
        pytest.param(0.0, build_drift_event(node="node-2"), False, False, id="another node"),
        pytest.param(0.0, build_drift_event(event_type=events.NODE_TAINTED), False, False, id="another type"),
    ],
)
def test_failure_of_similar_event_is_reported_at_first_attempt(
    clock: list[float], seconds_later: float, next_event: BaseCloudEvent, has_succeeded: bool, is_reported: bool
) -> None:
    """Design rule 9: After a reported failure, the failure of a similar event is reported at the first attempt.

    Ticks emit similar events more often than every half minute, so the broker's queue would otherwise keep growing.
    """
    tracker = FailureTracker()
    assert not tracker.record_failure(build_drift_event())
    clock[0] = 30.0
    assert tracker.record_failure(build_drift_event())
    if has_succeeded:
        tracker.record_success(build_drift_event(2))
    clock[0] += seconds_later

    assert tracker.record_failure(next_event) is is_reported


def test_failure_of_api_server_event_is_not_reported_at_first_attempt(clock: list[float]) -> None:
    """Design rule 9: A failing event of the API server is always retried for half a minute before it is reported.

    The report changes the status, which causes another event of the API server. If that event's failure were reported
    immediately, this would be an endless loop. The same rule applies to events about other kinds of objects.
    """
    tracker = FailureTracker()
    for kubernetes_object in (make_maintenance(), {**make_maintenance(), "kind": "Job"}):
        first, second = (
            build_resource_event(events.RESOURCE_UPDATED, kubernetes_object, str(kubernetes_object["kind"]))
            for _ in range(2)
        )
        assert not tracker.record_failure(first)
        clock[0] += 30.0
        assert tracker.record_failure(first)

        assert not tracker.record_failure(second)


def test_failure_of_event_that_waits_for_concurrent_attempt_is_reported_after_half_a_minute(clock: list[float]) -> None:
    """Check that an event that waits for a concurrent attempt is reported only after half a minute.

    The reply of the concurrent attempt may be lost, so the waiting event must be delivered again.
    """
    tracker = FailureTracker()
    tracker.record_failure(build_drift_event())
    clock[0] = 30.0
    tracker.record_failure(build_drift_event())

    assert not tracker.record_failure(build_drift_event(1), busy=True)
    assert tracker.record_failure(build_drift_event(2))
    clock[0] = 60.0
    assert tracker.record_failure(build_drift_event(1), busy=True)


def test_successful_attempt_restarts_failure_duration(clock: list[float]) -> None:
    """Check that a failure is reported only after half a minute without any successful attempt."""
    outcomes = itertools.cycle([True, False])

    def fail_every_other_time(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
        return fail_with_retry(event, client) if next(outcomes) else []

    runner = FunctionRunner(Function("cordon", fail_every_other_time, (), (), on_failure=build_step_failed))
    for clock[0] in (0.0, 60.0):
        with pytest.raises(Retry):
            runner.invoke(build_hint(), NO_CLIENT)
        assert runner.invoke(build_hint(), NO_CLIENT) == []


def test_step_without_failure_event_and_replay_are_retried(clock: list[float]) -> None:
    """Check that a step without a failure event, and any step for a replay, always raises `Retry` when it fails.

    `status` has no failure event, because it must not lose the information in its event. A replay must have the same
    result as the original event.
    """
    replay, runner_without_failure_event, runner = (
        extensions.add_replay_extensions(build_hint(), "replay-1", dry_run=False),
        build_runner(raise_retry),
        build_runner(),
    )
    for clock[0] in (0.0, 60.0):
        with pytest.raises(Retry):
            runner_without_failure_event.invoke(build_hint(), NO_CLIENT)
        with pytest.raises(Retry):
            runner.invoke(replay, NO_CLIENT)


def test_failure_tracker_drops_oldest_events_beyond_limit(clock: list[float]) -> None:
    """Check that the tracker drops the oldest failing events and the oldest reported failures beyond its limit."""
    tracker, failing = (
        FailureTracker(),
        [build_drift_event(node=f"node-{number}") for number in range(MAX_TRACKED_EVENTS + 1)],
    )
    for event in failing:
        assert not tracker.record_failure(event)
    clock[0] = 60.0

    assert tracker.record_failure(failing[-1])
    assert not tracker.record_failure(failing[0])
    for clock[0] in (60.0, 90.0):
        reported = [tracker.record_failure(event) for event in failing]
    assert reported[:3] == [True, False, True]
