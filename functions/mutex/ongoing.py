"""The run under way that an event is about, with its rules: how far it is, what a step writes of it and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from functions.data import data_of, is_text
from functions.mutex.subject import Replies, read, read_again, write_status
from kube.door.sync_client import Cluster
from kube.mutex import jobs, lookup, overdue, run_changes, run_record
from kube.mutex.objects import RUN, Verdict
from kube.mutex.objects import Reference as RuleName
from kube.mutex.overdue import Due
from kube.mutex.run_record import Record, Stage
from kube.mutex.validation import is_halted
from kube.paths import Object

UPGRADE_SECONDS = 6000
"""As long as the document's operator waits for one node: 100 times a minute."""
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
"""What waits → the event that says so."""
OF_STAGE = {stage: TYPES[due] for stage, due in overdue.OF_STAGE.items()}
"""How far a run is → the event that brings it on."""


def patience(environment: Mapping[str, str]) -> float:
    """Seconds that a released node has for its upgrade (MUT-45). Raises `ValueError` for what is no number of them."""
    told = environment.get("MUTEX_UPGRADE_SECONDS") or str(UPGRADE_SECONDS)
    if not (told.isascii() and told.isdecimal() and len(told) < 9):
        raise ValueError(f"MUTEX_UPGRADE_SECONDS={told} is no number of seconds")
    return float(told)


@dataclass(frozen=True)
class Ongoing:
    """A run under way as it is now, with those of its rules that are there."""

    run: Object
    rules: Mapping[RuleName, Object]

    @property
    def record(self) -> Record:
        """Its record."""
        return run_record.record_of(self.run)

    @property
    def stage(self) -> Stage:
        """How far it is."""
        return run_record.stage(self.run, self.has_cleanup)

    @property
    def node(self) -> str:
        """The node whose turn it is, "" when all are done."""
        return run_record.current(self.record)

    def has_cleanup(self, rule: RuleName) -> bool:
        """Whether a rule has a Job behind the upgrade; one that is gone may, and is waited for (MUT-46)."""
        return rule not in self.rules or jobs.has_cleanup(self.rules[rule])

    @property
    def is_halted(self) -> bool:
        """Whether it goes no further before a person acts."""
        return is_halted(self.run)

    def at(self, node: str) -> str:
        """Which node of how many it is, in words."""
        return run_record.position(self.record, node)

    def written(self, cluster: Cluster, change: Object, *verdicts: Verdict) -> Ongoing:
        """Write a change of the record, and these conditions; the run as it is then.

        Raises `Conflict` when somebody wrote it since it was read.
        """
        changes = {"record": change, **run_changes.shown(self.run, change, self.has_cleanup)}
        return Ongoing(write_status(self.run, cluster, changes, verdicts) or self.run, self.rules)

    def answer(self, kind: str, step: str, cause: BaseCloudEvent, *, node: str = "", **data: object) -> Replies:
        """One event about the run."""
        return [events.event(kind, step, Reference.of(self.run), node, cause=cause, data=data)]

    def answer_going_on(self, kind: str, step: str, cause: BaseCloudEvent) -> Replies:
        """One event by which the run goes on; none of one that is halted."""
        return [] if self.is_halted else self.answer(kind, step, cause)

    def answer_of_stage(self, step: str, cause: BaseCloudEvent) -> Replies:
        """The event that brings the run on from where it is; none where only a person does."""
        kind = OF_STAGE.get(self.stage)
        return self.answer(kind, step, cause, node=self.node) if kind else []


def read_ongoing(event: BaseCloudEvent, cluster: Cluster) -> Ongoing | None:
    """The event's run; None when it is gone, going, finished, stopped, or when what it names is not valid any more."""
    return ongoing(read(event, cluster, RUN), cluster)


def ongoing(run: Object | None, cluster: Cluster) -> Ongoing | None:
    """The run under way of a run config, if it may go on."""
    return None if run is None or is_halted(run) else under_way(run, cluster)


def read_under_way(event: BaseCloudEvent, cluster: Cluster) -> Ongoing | None:
    """The event's run, also one that is halted; None when it is gone, going or finished."""
    return under_way(read(event, cluster, RUN), cluster)


def read_redoing(event: BaseCloudEvent, cluster: Cluster, field: str) -> Ongoing | None:
    """The event's run for the step that writes this field of its record; None where it may do nothing.

    A halted run goes no further, but what somebody undid of it is done again: its nodes wait for their Jobs (MUT-47).
    """
    found = read_under_way(event, cluster)
    return found if found and (found.record.get(field) or not found.is_halted) else None


def under_way(run: Object | None, cluster: Cluster) -> Ongoing | None:
    """The run under way of a run config, also one that is halted; None when it is gone, going or finished."""
    if run is None or not overdue.is_under_way(run):
        return None
    return Ongoing(run, cluster.run(lookup.named_rules(cluster.api, run_record.rules_of(run_record.record_of(run)))))


def hinted(event: BaseCloudEvent, kind: str, cluster: Cluster) -> Object | None:
    """The run that an event is a hint to, as it is now; None for what concerns none.

    Our events name it, those of the sources a node or a Job: that concerns the run under way whose turn is at it. Runs
    are few, and the server's cache has them. Raises `BadEvent` for an event that names nothing.
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
