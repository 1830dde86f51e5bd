"""The active run that an event concerns: its rules and stage, the writes to its record, and the reply events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import ObjectReference, expand_type
from functions.event_data import is_nonempty_string, require_data
from functions.mutex.event_objects import (
    Replies,
    log_about,
    read_object,
    read_reference,
    record_warning,
    utc_now,
    write_status,
)
from kube.client.sync_client import SyncClient
from kube.mutex import due_events, jobs, lookup, run_record
from kube.mutex.due_events import DueEvent
from kube.mutex.objects import RUN_KIND, Condition
from kube.mutex.objects import Reference as RuleName
from kube.mutex.run_record import DueJob, RunRecord, Stage
from kube.mutex.validation import is_halted
from kube.paths import Object

UPGRADE_TIMEOUT_SECONDS = 6000
"""Default time limit for a node's upgrade, as in the specification: 100 checks at intervals of one minute."""
STOPPED_REASON = "UpgradeStopped"
"""Reason of the Kubernetes Event for a run that stops until a user resumes it."""
EVENT_TYPE_OF_DUE = {due: expand_type(due.value) for due in DueEvent}
"""Due event of a rule, target or run config → the CloudEvent type that triggers it."""
EVENT_TYPE_OF_STAGE = {stage: EVENT_TYPE_OF_DUE[row.due_event] for stage, row in due_events.STAGES.items()}
"""Stage of a run → the event that continues it."""


def parse_upgrade_timeout(environment: Mapping[str, str]) -> float:
    """Return the time limit for a released node's upgrade (MUT-45). Raises `ValueError` for an invalid setting."""
    seconds = environment.get("MUTEX_UPGRADE_SECONDS") or str(UPGRADE_TIMEOUT_SECONDS)
    if not (seconds.isascii() and seconds.isdecimal() and len(seconds) < 9):
        raise ValueError(
            f"MUTEX_UPGRADE_SECONDS={seconds} is not a number of seconds: set it to a whole number, such as 6000"
        )
    return float(seconds)


@dataclass(frozen=True)
class ActiveRun:
    """An active run as it was last read or written, with its existing rules."""

    run: Object
    rules: Mapping[RuleName, Object]

    @property
    def record(self) -> RunRecord:
        """Return the run's record."""
        return run_record.get_record(self.run)

    @property
    def stage(self) -> Stage:
        """Return the run's stage."""
        return run_record.compute_stage(self.run)

    @property
    def current_node(self) -> str:
        """Return the node that the run works on, or "" when all nodes are done."""
        return run_record.get_current_node(self.record)

    @property
    def node_record(self) -> Mapping[str, Any]:
        """Return what the record stores about the current node."""
        node_record: Mapping[str, Any] = self.record["nodes"][self.current_node]
        return node_record

    @property
    def position(self) -> str:
        """Return the current node and its position in the run as text, such as `node 2 of 5, worker-7`."""
        return f"{run_record.format_position(self.record, self.current_node)}, {self.current_node}"

    @property
    def due_job(self) -> DueJob | None:
        """Return the current node's first Job that has not completed, or None."""
        return run_record.find_due_job(self.record, self.current_node, self.has_cleanup)

    def has_cleanup(self, rule: RuleName) -> bool:
        """Return whether a rule has a cleanup Job, which runs after the upgrade.

        A rule that no longer exists may have had a cleanup Job, so the run waits for the rule (MUT-46).
        """
        return rule not in self.rules or jobs.has_cleanup(self.rules[rule])

    @property
    def is_halted(self) -> bool:
        """Return whether the run needs a user's action to continue."""
        return is_halted(self.run)

    def write_record(self, client: SyncClient, change: Object, *conditions: Condition) -> ActiveRun:
        """Write `change` into the record, and the conditions into the status; return the updated run.

        Raises `Conflict` if another client has written the object since it was read.
        """
        changes = {"record": change, **run_record.build_printed_fields(self.run, change, self.has_cleanup)}
        return ActiveRun(write_status(self.run, client, changes, conditions) or self.run, self.rules)

    def build_reply(
        self, event_type: str, step: str, cause: BaseCloudEvent, *, node: str = "", **data: object
    ) -> Replies:
        """Return a list with one event about the run."""
        return [
            events.build_event(event_type, step, ObjectReference.from_object(self.run), node, cause=cause, data=data)
        ]

    def build_reply_unless_halted(self, event_type: str, step: str, cause: BaseCloudEvent) -> Replies:
        """Return a list with the event `event_type` about the run, or an empty list if the run is halted."""
        return [] if self.is_halted else self.build_reply(event_type, step, cause)

    def build_stage_reply(self, step: str, cause: BaseCloudEvent) -> Replies:
        """Return a list with the event that continues the run, or an empty list if only a user can continue it."""
        event_type = EVENT_TYPE_OF_STAGE.get(self.stage)
        return self.build_reply(event_type, step, cause, node=self.current_node) if event_type else []


def finish_node(
    active_run: ActiveRun, field: str, step_name: str, cause: BaseCloudEvent, client: SyncClient, *conditions: Condition
) -> Replies:
    """Record that the current node is done, and reply with `node.done`; `field` is `cleanedAt` or `droppedAt`."""
    name = active_run.current_node
    change = run_record.build_node_done_change(active_run.record, name, field, utc_now())
    log_about(f'node "{name}" is done: {field}', active_run.run)
    active_run = active_run.write_record(client, change, *conditions)
    return active_run.build_reply(events.NODE_DONE, step_name, cause, node=name)


def halt_run(
    active_run: ActiveRun,
    step_name: str,
    condition: Condition,
    cause: BaseCloudEvent,
    client: SyncClient,
    *,
    job_name: str = "",
) -> Replies:
    """Stop the run until a user resumes it; the node keeps its labels, and the pools stay unchanged."""
    node_name, message = active_run.current_node, condition.message
    failure = run_record.build_failure_change(
        active_run.run, step_name, message, node_name=node_name, job_name=job_name, now=utc_now()
    )
    active_run = active_run.write_record(client, failure, condition)
    log_about(message, active_run.run)
    record_warning(active_run.run, STOPPED_REASON, message, client)
    return active_run.build_reply(events.RUN_HALTED, step_name, cause, node=node_name, error=message)


def load_unhalted_run(run: Object | None, client: SyncClient) -> ActiveRun | None:
    """Return the active run of a run config, or None if no run is active or the run is halted."""
    return None if run is None or is_halted(run) else load_active_run(run, client)


def read_active_run(event: BaseCloudEvent, client: SyncClient) -> ActiveRun | None:
    """Return the event's run, also if halted; None if the run is deleted, being deleted, or finished."""
    return load_active_run(read_object(event, client, RUN_KIND), client)


def read_repairable_run(event: BaseCloudEvent, client: SyncClient, field: str) -> ActiveRun | None:
    """Return the event's run for the step that writes the record's `field`, or None if the step must do nothing.

    A halted run makes no progress. But a step repeats its work after another client has undone that work, because the
    run's nodes still wait for their Jobs (MUT-47).
    """
    active_run = read_active_run(event, client)
    return active_run if active_run and (active_run.record.get(field) or not active_run.is_halted) else None


def load_active_run(run: Object | None, client: SyncClient) -> ActiveRun | None:
    """Return a run config's active run, also if halted; None if the run is deleted, being deleted, or finished."""
    if run is None or not run_record.is_active_undeleted(run):
        return None
    return ActiveRun(
        run, client.run(lookup.read_rules(client.api, run_record.list_recorded_rules(run_record.get_record(run))))
    )


def find_run_of_event(event: BaseCloudEvent, kind: str, client: SyncClient) -> Object | None:
    """Return the current state of the run that an event concerns, or None if the event concerns no run.

    Events from other steps name the run. Events from an event source name a node or a Job, and concern the active run
    that works on this object. Listing the runs is cheap: there are few runs, and the list comes from the API server's
    cache. Raises `BadEvent` if an event from a step names no run.
    """
    event_kind = event.get_extension("kind")
    if event_kind is None:
        return read_object(event, client, RUN_KIND)
    name = require_data(event).get("name")
    if event_kind != kind or not is_nonempty_string(name):
        return None
    for run in client.run(lookup.list_runs(client.api)):
        if run_record.is_active(run) and str(name) in run_record.list_current_object_names(run, kind):
            return read_reference(ObjectReference.from_object(run), client)
    return None
