"""Tests that a lasting failure is reported, and that a short failure or a replay's failure is not (rule 11)."""

from __future__ import annotations

import itertools
from typing import cast

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events, replay_extensions
from eventing.events import Reference
from functions.event_data import data_of
from functions.failures import Retry, retry
from functions.maintenance.event_objects import failed
from functions.serving import failure_tracker
from functions.serving.function import Fail, Function, invoke
from functions.serving.failure_tracker import KEPT, Failing
from kube.client.sync_client import Cluster
from tests.functions.event_builders import resource
from tests.functions.serving.test_pass_queue import FIRST, OTHER, hint
from tests.kube.samples import maintenance

NONE = cast("Cluster", None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list with the current time in seconds, which the test sets."""
    now = [0.0]
    monkeypatch.setattr(f"{failure_tracker.__name__}.time.monotonic", lambda: now[0])
    return now


def busy(_event: BaseCloudEvent, _cluster: Cluster) -> list[BaseCloudEvent]:
    raise Retry("busy")


def drift(
    number: int = 0, kind: str = events.NODE_DRIFTED, of: Reference = FIRST, node: str = "node-1"
) -> BaseCloudEvent:
    return events.event(kind, "resync", of, node, seed=f"{number}{node}")


def function(fail: Fail = failed) -> Function:
    return Function("cordon", busy, (), (), fail=fail)


def test_a_failure_is_told_after_a_while(clock: list[float]) -> None:
    """X-6: A step raises `Retry` for half a minute, and then returns its failure event with the error."""
    step, event = function(), hint()
    for clock[0] in (0.0, 15.0, 29.9):
        with pytest.raises(Retry):
            invoke(step, event, NONE)
    clock[0] = 30.0

    (told,) = invoke(step, event, NONE)

    assert (told.get_type(), data_of(told)["error"]) == (events.MAINTENANCE_FAILED, "busy")


@pytest.mark.parametrize(
    ("seconds", "following", "passed", "is_told"),
    [
        pytest.param(0.0, drift(1), False, True, id="at once"),
        pytest.param(120.0, drift(1), False, True, id="at a later tick"),
        pytest.param(120.1, drift(1), False, False, id="long after"),
        pytest.param(0.0, drift(1), True, False, id="passed meanwhile"),
        pytest.param(0.0, drift(of=OTHER), False, False, id="another maintenance"),
        pytest.param(0.0, drift(node="node-2"), False, False, id="another node"),
        pytest.param(0.0, drift(kind=events.NODE_TAINTED), False, False, id="another type"),
    ],
)
def test_the_next_one_of_a_kind_that_fails_for_long_is_told_at_its_first_try(
    clock: list[float], seconds: float, following: BaseCloudEvent, passed: bool, is_told: bool
) -> None:
    """Rule 9: After a reported failure, the next event of the same kind is reported at its first attempt.

    Ticks emit such events faster than each of them can fail for half a minute, so the broker's queue would keep
    growing.
    """
    memory = Failing()
    assert not memory.lasts(drift())
    clock[0] = 30.0
    assert memory.lasts(drift())
    if passed:
        memory.passed(drift(2))
    clock[0] += seconds

    assert memory.lasts(following) is is_told


def test_a_write_of_the_object_is_no_tick(clock: list[float]) -> None:
    """Rule 9: A failing event of the API server is always retried for half a minute before it is reported.

    The report writes the status, which causes another event of the API server. If that was reported at once, the cycle
    would not end. The same rule applies to events about other kinds of objects.
    """
    memory = Failing()
    for item in (maintenance(), {**maintenance(), "kind": "Job"}):
        first, second = (resource(events.RESOURCE_UPDATED, item, str(item["kind"])) for _ in range(2))
        assert not memory.lasts(first)
        clock[0] += 30.0
        assert memory.lasts(first)

        assert not memory.lasts(second)


def test_what_waits_for_another_try_is_told_by_itself_alone(clock: list[float]) -> None:
    """Check that an event that waits for a concurrent attempt is reported only after its own half minute.

    Its reply is that of the attempt in progress, which may be lost, so the event must be delivered again.
    """
    memory = Failing()
    memory.lasts(drift())
    clock[0] = 30.0
    memory.lasts(drift())

    assert not memory.lasts(drift(1), busy=True)
    assert memory.lasts(drift(2))
    clock[0] = 60.0
    assert memory.lasts(drift(1), busy=True)


def test_one_that_passed_meanwhile_begins_anew(clock: list[float]) -> None:
    """Check that a success restarts the half minute, even if attempts before and after it fail."""
    outcomes = itertools.cycle([True, False])

    def sometimes(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
        return busy(event, cluster) if next(outcomes) else []

    step = Function("cordon", sometimes, (), (), fail=failed)
    for clock[0] in (0.0, 60.0):
        with pytest.raises(Retry):
            invoke(step, hint(), NONE)
        assert invoke(step, hint(), NONE) == []


def test_what_has_no_event_of_failure_and_what_is_a_replay_is_tried_again(clock: list[float]) -> None:
    """Check that a step without a failure event, and any step for a replay, raises `Retry` however long it fails.

    `status` has no failure event, because it has facts to write. A replay gets the same result as the event itself did.
    """
    replay, writer, step = replay_extensions.marked(hint(), "replay-1", dry_run=False), function(retry), function()
    for clock[0] in (0.0, 60.0):
        with pytest.raises(Retry):
            invoke(writer, hint(), NONE)
        with pytest.raises(Retry):
            invoke(step, replay, NONE)


def test_it_does_not_remember_without_end(clock: list[float]) -> None:
    """Check that the tracker forgets its oldest failing events, and its oldest reported kinds, beyond the limit."""
    memory, failing = Failing(), [drift(node=f"node-{number}") for number in range(KEPT + 1)]
    for event in failing:
        assert not memory.lasts(event)
    clock[0] = 60.0

    assert memory.lasts(failing[-1])
    assert not memory.lasts(failing[0])
    for clock[0] in (60.0, 90.0):
        told = [memory.lasts(event) for event in failing]
    assert told[:3] == [True, False, True]
