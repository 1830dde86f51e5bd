"""Finds the active upgrade run that an event concerns, writes the run's record, and builds the reply events."""

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
"""Default timeout for a node's upgrade: the specification's 100 checks at intervals of one minute."""
STOPPED_REASON = "UpgradeStopped"
"""Reason of the Kubernetes Event for a halted run, which makes no progress until a user resumes it."""
EVENT_TYPE_OF_DUE = {due: expand_type(due.value) for due in DueEvent}
"""Map from a `DueEvent` to its full CloudEvents type."""
EVENT_TYPE_OF_STAGE = {stage: EVENT_TYPE_OF_DUE[row.due_event] for stage, row in due_events.STAGES.items()}
"""Map from a run's stage to the type of the event that continues the run."""


def parse_upgrade_timeout(environment: Mapping[str, str]) -> float:
    """Return the timeout in seconds for a released node's upgrade (MUT-45).

    Raises `ValueError` if `MUTEX_UPGRADE_SECONDS` is invalid.
    """
    seconds = environment.get("MUTEX_UPGRADE_SECONDS") or str(UPGRADE_TIMEOUT_SECONDS)
    if not (seconds.isascii() and seconds.isdecimal() and len(seconds) < 9):
        raise ValueError(
            f"MUTEX_UPGRADE_SECONDS={seconds} is not a number of seconds: set it to a whole number, such as 6000"
        )
    return float(seconds)


@dataclass(frozen=True)
class ActiveRun:
    """An active upgrade run, as last read or written, with those of its MutexRules that exist."""

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
        """Return the name of the node that the run is upgrading, or "" if all nodes are done."""
        return run_record.get_current_node(self.record)

    @property
    def node_record(self) -> Mapping[str, Any]:
        """Return the current node's entry in the run's record."""
        node_record: Mapping[str, Any] = self.record["nodes"][self.current_node]
        return node_record

    @property
    def position(self) -> str:
        """Return the current node's position in the run and its name as text, such as `node 2 of 5, worker-7`."""
        return f"{run_record.format_position(self.record, self.current_node)}, {self.current_node}"

    @property
    def due_job(self) -> DueJob | None:
        """Return the current node's first Job that has not completed, or None."""
        return run_record.find_due_job(self.record, self.current_node, self.has_cleanup)

    def has_cleanup(self, rule: RuleName) -> bool:
        """Return whether a rule has a cleanup Job, which runs after the upgrade.

        Returns True for a deleted rule, which may have had a cleanup Job; the run then waits for the rule (MUT-46).
        """
        return rule not in self.rules or jobs.has_cleanup(self.rules[rule])

    @property
    def is_halted(self) -> bool:
        """Return whether the run is halted until a user resumes it."""
        return is_halted(self.run)

    def write_record(self, client: SyncClient, change: Object, *conditions: Condition) -> ActiveRun:
        """Merge `change` into the run's record, and write the conditions into the status; return the updated run.

        Raises `Conflict` if another client has changed the MutexRunConfig since it was read.
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
    """Record that the current node is done, and return `node.done`.

    `field` is the field of the node's record that receives the time: `cleanedAt` or `droppedAt`.
    """
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
    """Halt the run until a user resumes it; the node keeps its labels, and the MachineConfigPools stay unchanged."""
    node_name, message = active_run.current_node, condition.message
    failure = run_record.build_failure_change(
        active_run.run, step_name, message, node_name=node_name, job_name=job_name, now=utc_now()
    )
    active_run = active_run.write_record(client, failure, condition)
    log_about(message, active_run.run)
    record_warning(active_run.run, STOPPED_REASON, message, client)
    return active_run.build_reply(events.RUN_HALTED, step_name, cause, node=node_name, error=message)


def load_unhalted_run(run: Object | None, client: SyncClient) -> ActiveRun | None:
    """Return the active run of a MutexRunConfig, or None if no run is active or the run is halted."""
    return None if run is None or is_halted(run) else load_active_run(run, client)


def read_active_run(event: BaseCloudEvent, client: SyncClient) -> ActiveRun | None:
    """Return the active run of the event's MutexRunConfig, even if the run is halted; None if no run is active."""
    return load_active_run(read_object(event, client, RUN_KIND), client)


def read_repairable_run(event: BaseCloudEvent, client: SyncClient, field: str) -> ActiveRun | None:
    """Return the event's active run, or None if no run is active, or if it is halted and `field` is not recorded yet.

    `field` is the field of the record that the calling step writes. In a halted run, a step does no new work. However,
    it repeats work that another client has undone, because the nodes still wait for their Jobs (MUT-47).
    """
    active_run = read_active_run(event, client)
    return active_run if active_run and (active_run.record.get(field) or not active_run.is_halted) else None


def load_active_run(run: Object | None, client: SyncClient) -> ActiveRun | None:
    """Return the active run of a MutexRunConfig, even if the run is halted.

    Returns None if the MutexRunConfig is missing or being deleted, or if it has no active run.
    """
    if run is None or not run_record.is_active_undeleted(run):
        return None
    return ActiveRun(
        run, client.run(lookup.read_rules(client.api, run_record.list_recorded_rules(run_record.get_record(run))))
    )


def find_run_of_event(event: BaseCloudEvent, kind: str, client: SyncClient) -> Object | None:
    """Return the current MutexRunConfig that an event concerns, or None if the event concerns no run.

    An event that a step emitted names the MutexRunConfig. An event from an event source names a node or a Job (`kind`),
    and concerns the active run whose current node or Job it is. To find that run, the function lists the few
    MutexRunConfigs from the API server's cache. Raises `BadEvent` if an event from a step names no MutexRunConfig.
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
