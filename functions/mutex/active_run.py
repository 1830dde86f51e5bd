"""The active run that an event is about, with its rules, its stage, the writes to its record, and the reply events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from functions.event_data import data_of, is_text
from functions.mutex.event_objects import Replies, read, read_again, write_status
from kube.client.sync_client import Cluster
from kube.mutex import jobs, lookup, due_events, run_changes, run_record
from kube.mutex.objects import RUN, Verdict
from kube.mutex.objects import Reference as RuleName
from kube.mutex.due_events import Due
from kube.mutex.run_record import Record, Stage
from kube.mutex.validation import is_halted
from kube.paths import Object

UPGRADE_SECONDS = 6000
"""Default time limit for a node's upgrade, as in the specification: 100 checks at intervals of one minute."""
TYPES = {
    Due.RULE: events.RULE_FOUND,
    Due.TARGET: events.TARGET_FOUND,
    Due.CHECK: events.RUN_FOUND,
    Due.DETECT: events.RUN_VALIDATED,
    Due.CLAIM: events.UPGRADE_FOUND,
    Due.PAUSE: events.POOLS_CLAIMED,
    Due.LABEL: events.POOLS_PAUSED,
    Due.EDIT: events.NODES_LABELLED,
    Due.JOB: events.JOB_DUE,
    Due.RELEASE: events.NODE_CLEARED,
    Due.UPGRADE: events.NODE_RELEASED,
    Due.RESTORE: events.RUN_COMPLETED,
    Due.END: events.RUN_ENDED,
}
"""What a rule, target or run config waits for → the event that triggers it."""
OF_STAGE = {stage: TYPES[due] for stage, due in due_events.OF_STAGE.items()}
"""Stage of a run → the event that continues it."""


def patience(environment: Mapping[str, str]) -> float:
    """Return the time limit for a released node's upgrade (MUT-45). Raises `ValueError` for an invalid setting."""
    told = environment.get("MUTEX_UPGRADE_SECONDS") or str(UPGRADE_SECONDS)
    if not (told.isascii() and told.isdecimal() and len(told) < 9):
        raise ValueError(f"MUTEX_UPGRADE_SECONDS={told} is no number of seconds")
    return float(told)


@dataclass(frozen=True)
class Ongoing:
    """An active run as it was last read or written, with those of its rules that exist."""

    run: Object
    rules: Mapping[RuleName, Object]

    @property
    def record(self) -> Record:
        """Return the run's record."""
        return run_record.record_of(self.run)

    @property
    def stage(self) -> Stage:
        """Return the run's stage."""
        return run_record.stage(self.run, self.has_cleanup)

    @property
    def node(self) -> str:
        """Return the node that the run works on, "" when all are done."""
        return run_record.current(self.record)

    def has_cleanup(self, rule: RuleName) -> bool:
        """Return whether a rule has a Job after the upgrade.

        A rule that no longer exists may have one, so the run waits for the rule (MUT-46).
        """
        return rule not in self.rules or jobs.has_cleanup(self.rules[rule])

    @property
    def is_halted(self) -> bool:
        """Return whether the run needs a user's action to continue."""
        return is_halted(self.run)

    def at(self, node: str) -> str:
        """Return the node's position in the run as text, such as `node 2 of 5`."""
        return run_record.position(self.record, node)

    def written(self, cluster: Cluster, change: Object, *verdicts: Verdict) -> Ongoing:
        """Write a change of the record and these conditions; return the run as it is then.

        Raises `Conflict` if another client has written the object since it was read.
        """
        changes = {"record": change, **run_changes.shown(self.run, change, self.has_cleanup)}
        return Ongoing(write_status(self.run, cluster, changes, verdicts) or self.run, self.rules)

    def answer(self, kind: str, step: str, cause: BaseCloudEvent, *, node: str = "", **data: object) -> Replies:
        """Return a list with one event about the run."""
        return [events.event(kind, step, Reference.of(self.run), node, cause=cause, data=data)]

    def answer_going_on(self, kind: str, step: str, cause: BaseCloudEvent) -> Replies:
        """Return a list with the event that continues the run, empty if the run is halted."""
        return [] if self.is_halted else self.answer(kind, step, cause)

    def answer_of_stage(self, step: str, cause: BaseCloudEvent) -> Replies:
        """Return a list with the event of the run's stage, empty if only a user can continue the run."""
        kind = OF_STAGE.get(self.stage)
        return self.answer(kind, step, cause, node=self.node) if kind else []


def read_ongoing(event: BaseCloudEvent, cluster: Cluster) -> Ongoing | None:
    """Return the event's run; None if it is deleted, being deleted, finished, failed, or no longer valid."""
    return ongoing(read(event, cluster, RUN), cluster)


def ongoing(run: Object | None, cluster: Cluster) -> Ongoing | None:
    """Return the active run of a run config, or None if there is none or it is halted."""
    return None if run is None or is_halted(run) else under_way(run, cluster)


def read_under_way(event: BaseCloudEvent, cluster: Cluster) -> Ongoing | None:
    """Return the event's run, even if it is halted; None if it is deleted, being deleted, or finished."""
    return under_way(read(event, cluster, RUN), cluster)


def read_redoing(event: BaseCloudEvent, cluster: Cluster, field: str) -> Ongoing | None:
    """Return the event's run for the step that writes `field` of its record, or None if the step must do nothing.

    A halted run makes no progress. But a step repeats its work if another client has undone it, because the run's nodes
    still wait for their Jobs (MUT-47).
    """
    found = read_under_way(event, cluster)
    return found if found and (found.record.get(field) or not found.is_halted) else None


def under_way(run: Object | None, cluster: Cluster) -> Ongoing | None:
    """Return a run config's active run, even if it is halted; None if it is deleted, being deleted, or finished."""
    if run is None or not due_events.is_under_way(run):
        return None
    return Ongoing(run, cluster.run(lookup.named_rules(cluster.api, run_record.rules_of(run_record.record_of(run)))))


def hinted(event: BaseCloudEvent, kind: str, cluster: Cluster) -> Object | None:
    """Return the current state of the run that an event concerns, or None if it concerns no run.

    Events from other steps name the run. Events from a source name a node or a Job, and concern the active run that
    works on it. Listing the runs is cheap: they are few, and the list comes from the API server's cache. Raises
    `BadEvent` if an event from a step names no run.
    """
    told = event.get_extension("kind")
    if told is None:
        return read(event, cluster, RUN)
    name = data_of(event).get("name")
    if told != kind or not is_text(name):
        return None
    for run in cluster.run(lookup.runs(cluster.api)):
        if run_record.is_active(run) and str(name) in run_record.at_work(run, kind):
            return read_again(Reference.of(run), cluster)
    return None
