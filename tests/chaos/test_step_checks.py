"""Tests for the check that the journal contains an event about an escalation step before this step deletes a pod."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from chaos.step_checks import EscalationDeletion, EscalationStepKey, list_unannounced_deletions, parse_journaled_steps
from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.journal.entries import Entry
from kube.maintenance.groups import MEDIK8S

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
STEP = EscalationStepKey("uid-1", "Delete", "1s")
OTHER_STEP = EscalationStepKey("uid-1", "DeleteNow", "2s")


def build_overdue(seconds: float, **data: str) -> CloudEvent:
    reference = ObjectReference(MEDIK8S.api_version, "m", "uid-1")
    event = build_event(events.DRAIN_OVERDUE, "resync", reference, "node-1", data=data)
    return CloudEvent({**event.get_attributes(), "time": NOW + timedelta(seconds=seconds)}, event.get_data())


def build_deletion(seconds: float, *steps: EscalationStepKey) -> EscalationDeletion:
    return EscalationDeletion(NOW.timestamp() + seconds, "a/p", steps, was_ready=True, was_terminating=False)


def parse(*journaled: CloudEvent) -> dict[EscalationStepKey, float]:
    return parse_journaled_steps(Entry(number, NOW, event, ()) for number, event in enumerate(journaled))


def test_first_event_of_each_escalation_step_counts() -> None:
    """Check that repeated events about an escalation step, and events about a deadline alone, do not count."""
    step_data = {"action": "Delete", "after": "1s"}

    assert parse(build_overdue(3, **step_data), build_overdue(1, **step_data), build_overdue(0)) == {
        STEP: NOW.timestamp() + 1
    }


@pytest.mark.parametrize(
    ("deletion", "is_announced"),
    [
        (build_deletion(2, STEP), True),
        (build_deletion(2, OTHER_STEP, STEP), True),
        (build_deletion(0, STEP), False),
        (build_deletion(2, OTHER_STEP), False),
    ],
    ids=["later", "one of two steps", "earlier", "another step"],
)
def test_deletion_requires_earlier_event_of_its_escalation_step(
    deletion: EscalationDeletion, is_announced: bool
) -> None:
    steps = parse(build_overdue(1, action="Delete", after="1s"))

    assert (list_unannounced_deletions([deletion], steps) == []) is is_announced
