"""Finds the rule, target or run that an event speaks of, reads it again, and writes its status (X-2, X-6)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from eventing.subjects import SUBJECTS
from eventing.wire import BadEvent
from functions.data import data_of, is_text
from kube.door.api import absent_ok
from kube.door.api_errors import Denied, NotFound, Rejected
from kube.door.sync_client import Cluster
from kube.mutex import jobs, lookup, overdue, run_record
from kube.mutex.objects import (
    API_VERSION,
    RUN,
    Verdict,
    condition,
    has_finalizer,
    is_deleting,
    path,
    path_of,
    status_patch,
)
from kube.mutex.objects import (
    Reference as RuleName,
)
from kube.mutex.overdue import Due
from kube.mutex.run_record import Record, Stage
from kube.mutex.validation import is_halted
from kube.paths import Object

Replies = list[BaseCloudEvent]
UPGRADE_SECONDS = 6000
"""As long as the document's operator waits for one node: 100 times a minute."""
Step = Callable[[BaseCloudEvent, Cluster], Replies]
log = logging.getLogger("functions")
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


def now() -> datetime:
    """The moment."""
    return datetime.now(timezone.utc)


def reference_of(event: BaseCloudEvent, kind: str) -> Reference:
    """The object of a kind that an event speaks of: the data itself, or what it names.

    Raises `BadEvent` naming the missing field.
    """
    data = data_of(event)
    whole = data.get("kind") == kind
    names = data.get("metadata") if whole else data.get(SUBJECTS[kind])
    where = data if whole else names
    if not isinstance(names, dict) or not isinstance(where, dict):
        raise BadEvent(f"data.{SUBJECTS[kind]} is missing: {{apiVersion, namespace, name, uid}} of a {kind}")
    fields = {name: names.get(name) for name in ("name", "uid", "namespace")}
    for field, value in fields.items():
        if not is_text(value):
            raise BadEvent(f"the {field} of the {kind} is missing in data")
    if where.get("apiVersion") != API_VERSION:
        raise BadEvent(f"the apiVersion of the {kind} is not {API_VERSION}")
    return Reference(API_VERSION, names["name"], names["uid"], names["namespace"], kind)


def read(event: BaseCloudEvent, cluster: Cluster, kind: str) -> Object | None:
    """The object as it is now; None when it is gone, or is another one of its name."""
    return read_again(reference_of(event, kind), cluster)


def read_again(reference: Reference, cluster: Cluster) -> Object | None:
    """The object as it is now; None when it is gone, or is another one of its name.

    What follows a run that says `skipTLSVerify` is not verified (MUT-52). The reading that finds it out is: an event
    alone shall not bring a function to show its token to whoever stands in the API server's place.
    """
    where = path_of(reference.kind, reference.namespace, reference.name)
    found = cluster.run(absent_ok(cluster.api.get(where)))
    if found is None or found["metadata"]["uid"] != reference.uid:
        return None
    if reference.kind == RUN and found["spec"].get("skipTLSVerify"):
        cluster.stop_verifying()
    return found


def is_for(event: BaseCloudEvent, kind: str) -> bool:
    """Whether an event that a source sent is about this kind; ours always are."""
    return event.get_extension("kind") in (None, kind)


def write_status(item: Object, cluster: Cluster, changes: Object, verdicts: Iterable[Verdict] = ()) -> Object | None:
    """Write the status where it differs; the object as written, None when nothing was to be written.

    Raises `Conflict` when somebody wrote it since it was read.
    """
    patch = status_patch(item, changes, verdicts, now())
    return cluster.patch(f"{path(item)}/status", patch) if patch else None


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
        changes = {"record": change, **run_record.shown(self.run, change, self.has_cleanup)}
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
    return None if run is None or is_halted(run) else _under_way(run, cluster)


def read_under_way(event: BaseCloudEvent, cluster: Cluster) -> Ongoing | None:
    """The event's run, also one that is halted; None when it is gone, going or finished."""
    return _under_way(read(event, cluster, RUN), cluster)


def read_redoing(event: BaseCloudEvent, cluster: Cluster, field: str) -> Ongoing | None:
    """The event's run for the step that writes this field of its record; None where it may do nothing.

    A halted run goes no further, but what somebody undid of it is done again: its nodes wait for their Jobs (MUT-47).
    """
    found = read_under_way(event, cluster)
    return found if found and (found.record.get(field) or not found.is_halted) else None


def _under_way(run: Object | None, cluster: Cluster) -> Ongoing | None:
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


def telling(kind: str, reason: str) -> Callable[[Step], Step]:
    """Have a step about a run write what it is refused into this condition (MUT-1): the tick tries again.

    It gets a door of its own, since a run may ask that its requests be unverified.
    """

    def around(step: Step) -> Step:
        @functools.wraps(step)
        def told(event: BaseCloudEvent, cluster: Cluster) -> Replies:
            door = cluster.view()
            try:
                return step(event, door)
            except (Denied, Rejected, NotFound) as error:
                _tell(event, door, Verdict(kind, False, reason, error.message))
                return []

        return told

    return around


def _tell(event: BaseCloudEvent, cluster: Cluster, verdict: Verdict) -> None:
    log.error("a run cannot go on: %s", verdict.message, extra={"fields": {"event": event.get_id()}})
    data = data_of(event)
    if not ("run" in data or data.get("kind") == RUN):
        return
    run = read(event, cluster, RUN)
    if run is not None and (not is_deleting(run) or _hangs_untold(run, verdict)):
        write_status(run, cluster, {}, [verdict])


def _hangs_untold(run: Object, verdict: Verdict) -> bool:
    """Whether nobody said yet that a deletion does not come on. Once is enough: each write of it brings an event."""
    return has_finalizer(run) and condition(run, verdict.kind).get("status") != "False"


def log_about(message: str, run: Object, **more: object) -> None:
    """Log one line about a run."""
    metadata = run["metadata"]
    names = {"reconciler kind": run["kind"], "name": metadata["name"], "namespace": metadata["namespace"]}
    log.info(message, extra={"fields": {**names, **more}})


def unanswered(step: str, event: BaseCloudEvent, error: str) -> Replies:
    """What becomes of an event that a step cannot act on: the log has why, and the tick tries again."""
    log.error("%s gave up an event: %s", step, error, extra={"fields": {"event": event.get_id()}})
    return []
