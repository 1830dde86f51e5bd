"""Checks the pods that escalation steps delete: which step had begun, and whether the pod had recovered. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from eventing import events
from eventing.journal.entries import Entry
from kube.maintenance.escalation import DELETE_NOW, DELETE_UNREADY


class StepKey(NamedTuple):
    """An escalation step of one NodeMaintenance."""

    maintenance_uid: str
    action: str
    after: str


@dataclass(frozen=True)
class StepDeletion:
    """A pod that a step has deleted.

    Attributes:
        requested_at: The arrival of the request, in seconds since 1970.
        pod: The namespace and name of the pod.
        steps: The steps of which one has deleted the pod: the current one, or one that has just ended.
        was_ready, was_terminating: The state of the pod in the version that the request named.
    """

    requested_at: float
    pod: str
    steps: Collection[StepKey]
    was_ready: bool
    was_terminating: bool


def find_forbidden_deletion(deletion: StepDeletion) -> Iterator[str]:
    """Yield the violation if none of the steps may delete the pod in the state that it had."""
    actions = {step.action for step in deletion.steps}
    if not actions:
        yield f"pod {deletion.pod} was deleted although no NodeMaintenance of its node was in an escalation step"
    elif deletion.was_terminating and DELETE_NOW not in actions:
        yield f"pod {deletion.pod} was terminating, but step {', '.join(sorted(actions))} deleted it again"
    elif deletion.was_ready and actions == {DELETE_UNREADY}:
        yield f"pod {deletion.pod} was ready, but step {DELETE_UNREADY} deleted it"


def parse_journaled_steps(entries: Iterable[Entry]) -> dict[StepKey, float]:
    """Return when the first event was sent that announces a step, by step; the entries are those of the journal."""
    times: dict[StepKey, float] = {}
    for entry in entries:
        data, time = entry.event.get_data(), entry.event.get_time()
        if entry.event.get_type() == events.DRAIN_OVERDUE and isinstance(data, dict) and "action" in data and time:
            key = StepKey(data["maintenance"]["uid"], data["action"], data["after"])
            times[key] = min(times.get(key, time.timestamp()), time.timestamp())
    return times


def list_unannounced_deletions(
    deletions: Iterable[StepDeletion], journaled_steps: Mapping[StepKey, float]
) -> list[str]:
    """Return the violations: pods that were deleted before the journal's event about any of their steps was sent."""
    return [
        f"pod {deletion.pod} was deleted, but the journal has no earlier event about its escalation step"
        for deletion in deletions
        if deletion.steps
        and not any(
            step in journaled_steps and journaled_steps[step] <= deletion.requested_at for step in deletion.steps
        )
    ]
