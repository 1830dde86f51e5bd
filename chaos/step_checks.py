"""Checks deletions by escalation steps: which step had begun, and whether the pod was ready. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from eventing import events
from eventing.journal.entries import Entry
from kube.maintenance.escalation import DELETE_NOW, DELETE_UNREADY


class EscalationStepKey(NamedTuple):
    """One escalation step of a NodeMaintenance."""

    maintenance_uid: str
    action: str
    after: str


@dataclass(frozen=True)
class EscalationDeletion:
    """A deletion of a pod by an escalation step.

    Attributes:
        requested_at: The time of the request, in seconds since the epoch.
        pod: The pod's namespace and name.
        steps: The steps that may have deleted the pod: the current one, or one that has just ended.
        was_ready, was_terminating: The pod's state in the resourceVersion of the request's preconditions.
    """

    requested_at: float
    pod: str
    steps: Collection[EscalationStepKey]
    was_ready: bool
    was_terminating: bool


def find_forbidden_deletion(deletion: EscalationDeletion) -> Iterator[str]:
    """Yield a violation if none of the escalation steps may delete a pod in this state."""
    actions = {step.action for step in deletion.steps}
    if not actions:
        yield f"pod {deletion.pod} was deleted although no NodeMaintenance of its node was in an escalation step"
    elif deletion.was_terminating and DELETE_NOW not in actions:
        yield f"pod {deletion.pod} was terminating, but step {', '.join(sorted(actions))} deleted it again"
    elif deletion.was_ready and actions == {DELETE_UNREADY}:
        yield f"pod {deletion.pod} was ready, but step {DELETE_UNREADY} deleted it"


def parse_journaled_steps(entries: Iterable[Entry]) -> dict[EscalationStepKey, float]:
    """Return when each escalation step was first announced by an event in the journal, in seconds since the epoch."""
    times: dict[EscalationStepKey, float] = {}
    for entry in entries:
        data, time = entry.event.get_data(), entry.event.get_time()
        if entry.event.get_type() == events.DRAIN_OVERDUE and isinstance(data, dict) and "action" in data and time:
            key = EscalationStepKey(data["maintenance"]["uid"], data["action"], data["after"])
            times[key] = min(times.get(key, time.timestamp()), time.timestamp())
    return times


def list_unannounced_deletions(
    deletions: Iterable[EscalationDeletion], journaled_steps: Mapping[EscalationStepKey, float]
) -> list[str]:
    """Return a violation for each pod that was deleted before the journal's event about its escalation step."""
    return [
        f"pod {deletion.pod} was deleted, but the journal has no earlier event about its escalation step"
        for deletion in deletions
        if deletion.steps
        and not any(
            step in journaled_steps and journaled_steps[step] <= deletion.requested_at for step in deletion.steps
        )
    ]
