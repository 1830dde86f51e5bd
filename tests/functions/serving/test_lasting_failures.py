"""What fails for long is told; what passes, or is a replay, is not (rule 11)."""

from __future__ import annotations

import itertools
from typing import cast

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events, marks
from functions.data import data_of
from functions.failures import Retry, retry
from functions.maintenance.subject import failed
from functions.serving import lasting_failures
from functions.serving.function import Fail, Function, invoke
from functions.serving.lasting_failures import KEPT, Failing
from kube.door.sync_client import Cluster
from tests.functions.serving.test_looks import hint

NONE = cast("Cluster", None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the time, in seconds, for the test to set."""
    now = [0.0]
    monkeypatch.setattr(f"{lasting_failures.__name__}.time.monotonic", lambda: now[0])
    return now


def busy(_event: BaseCloudEvent, _cluster: Cluster) -> list[BaseCloudEvent]:
    raise Retry("busy")


def function(fail: Fail = failed) -> Function:
    return Function("cordon", busy, (), (), fail=fail)


def test_a_failure_is_told_after_a_while(clock: list[float]) -> None:
    """X-6: 503 for half a minute, then the event of failure with the error; the same event again begins anew."""
    step, event = function(), hint()
    for clock[0] in (0.0, 15.0, 29.9):
        with pytest.raises(Retry):
            invoke(step, event, NONE)
    clock[0] = 30.0

    (told,) = invoke(step, event, NONE)

    assert (told.get_type(), data_of(told)["error"]) == (events.MAINTENANCE_FAILED, "busy")
    with pytest.raises(Retry):
        invoke(step, event, NONE)


def test_one_that_passed_meanwhile_begins_anew(clock: list[float]) -> None:
    """Half a minute without success, not half a minute between two failures."""
    outcomes = itertools.cycle([True, False])

    def sometimes(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
        return busy(event, cluster) if next(outcomes) else []

    step = Function("cordon", sometimes, (), (), fail=failed)
    for clock[0] in (0.0, 60.0):
        with pytest.raises(Retry):
            invoke(step, hint(), NONE)
        assert invoke(step, hint(), NONE) == []


def test_what_has_no_event_of_failure_and_what_is_a_replay_is_tried_again(clock: list[float]) -> None:
    """`status` has facts to write; a replay is answered as the event itself was."""
    replay, writer, step = marks.marked(hint(), "replay-1", dry_run=False), function(retry), function()
    for clock[0] in (0.0, 60.0):
        with pytest.raises(Retry):
            invoke(writer, hint(), NONE)
        with pytest.raises(Retry):
            invoke(step, replay, NONE)


def test_it_does_not_remember_without_end(clock: list[float]) -> None:
    """Of more than it keeps, the oldest are forgotten."""
    memory = Failing()
    for number in range(KEPT + 1):
        assert not memory.lasts(hint(number))
    clock[0] = 60.0

    assert memory.lasts(hint(KEPT))
    assert not memory.lasts(hint(0))
