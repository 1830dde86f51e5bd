"""The record of a run in the status of its MutexRunConfig: the original state, and the progress of each node.

Functions are stateless, so the record contains everything that a run must remember. Each function writes its own
fields, with changes that run_changes.py builds; docs/mutex.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from enum import Enum
from typing import Any, NamedTuple, TypeGuard

from kube.mutex.jobs import CLEANUP, MAIN, JobOutcome, format_job_key
from kube.mutex.objects import RETRY_ANNOTATION, Reference, Resource, get_status
from kube.paths import Object
from kube.times import TIME_FORMAT

COOLDOWN_SECONDS = 10
"""Cooldown between two corrections of the same change, in seconds.

A change by another client is undone immediately. If the client repeats the change within this time, the correction
waits for the tick. Otherwise, both clients would write as fast as events are delivered.
"""
RunRecord = Mapping[str, Any]
HasCleanup = Callable[[Reference], bool]


class Stage(Enum):
    """Stage of a run; the value is what `kubectl get` shows."""

    IDLE = "Idle"
    CLAIMED = "PausingPools"
    PAUSED = "LabellingNodes"
    LABELLED = "EditingPools"
    JOBS = "RunningJobs"
    PREJOBS_DONE = "ReleasingNode"
    RELEASED = "UpgradingNode"
    CLEANUP = "CleaningUp"
    NODES_DONE = "RestoringPools"
    FAILED = "Failed"


class DueJob(NamedTuple):
    """The Job that a node waits for."""

    job_kind: str
    rule: Reference


def get_record(run: Resource) -> RunRecord:
    """Return the record, {} if the run config has not had a run yet."""
    return get_status(run).get("record") or {}


def is_active(run: Resource) -> bool:
    """Return whether a run has begun and has not finished."""
    record = get_record(run)
    return bool(record) and not record.get("finishedAt")


def get_finished_version(run: Resource) -> str:
    """Return the version to which the last run upgraded its nodes, "" if the run did not finish or was abandoned."""
    record = get_record(run)
    return str(record["desired"]) if record.get("finishedAt") and not record.get("abandoned") else ""


def list_active_run_ids(runs: Iterable[Resource]) -> set[str]:
    """Return the ids of the active runs."""
    return {str(get_record(run).get("id")) for run in runs if is_active(run)}


def get_run_config_uid(record: RunRecord) -> str:
    """Return the uid of the run config that the record belongs to."""
    return parse_run_config_uid(str(record["id"]))


def parse_run_config_uid(run_id: str) -> str:
    """Return the uid of the run config that a run's id contains, "" for an invalid id."""
    return run_id.rpartition("-")[0]


def list_recorded_rules(record: RunRecord) -> list[Reference]:
    """Return the rules of a run in the order of the record."""
    return [Reference(rule["namespace"], rule["name"]) for rule in record["rules"]]


def is_node_done(node_record: Mapping[str, Any]) -> bool:
    """Return whether the record marks the node as finished or dropped."""
    return bool(node_record.get("cleanedAt") or node_record.get("droppedAt"))


def is_recorded_node(node: Object | None, record: RunRecord, name: str) -> TypeGuard[Object]:
    """Return whether the recorded node still exists; a different node may have registered under its name."""
    return node is not None and node["metadata"]["uid"] == record["nodes"][name]["uid"]


def get_current_node(record: RunRecord) -> str:
    """Return the name of the node that the run works on, "" when all nodes are done.

    In a corrupted record, this node may be in `order` but not in `nodes`.
    """
    return next((name for name in record["order"] if not is_node_done(record["nodes"].get(name) or {})), "")


def format_position(record: RunRecord, name: str) -> str:
    """Return the node's position in the run as text, such as `node 2 of 5`."""
    order = list(record["order"])
    return f"node {order.index(name) + 1} of {len(order)}" if name in order else f"node ? of {len(order)}"


def list_unreleased_nodes(record: RunRecord) -> list[str]:
    """Return the names of the nodes that the run has not released, so that they keep the run's labels."""
    return [
        name
        for name in record["order"]
        if not record["nodes"][name].get("releasedAt")
        and name != record.get("released")
        and not is_node_done(record["nodes"][name])
    ]


def get_job_entry(record: RunRecord, node_name: str, due_job: DueJob) -> Mapping[str, Any]:
    """Return the recorded attempt and `JOB_FIELDS` of a Job, {} before it is created."""
    entry: Mapping[str, Any] = (record["nodes"][node_name].get("jobs") or {}).get(format_job_key(*due_job)) or {}
    return entry


def find_due_job(record: RunRecord, node_name: str, has_cleanup: HasCleanup) -> DueJob | None:
    """Return the node's first Job that has not completed, or None; cleanup Jobs follow after the upgrade.

    A Job that was created is awaited even if its rule no longer requires it. Otherwise, the Job would run concurrently
    with the next node's Job.
    """
    kind = CLEANUP if record["nodes"][node_name].get("upgradedAt") else MAIN
    for rule in list_recorded_rules(record):
        due = DueJob(kind, rule)
        entry = get_job_entry(record, node_name, due)
        is_required = kind == MAIN or has_cleanup(rule) or entry.get("name")
        if is_required and entry.get("result") != JobOutcome.COMPLETE.value:
            return due
    return None


def assume_cleanup(_rule: Reference) -> bool:
    """Return True, for callers that need only the run's stage, which does not depend on cleanup Jobs."""
    return True


def compute_stage(run: Resource, has_cleanup: HasCleanup) -> Stage:
    """Return the stage of the run."""
    record = get_record(run)
    if not is_active(run):
        return Stage.IDLE
    if record.get("failure"):
        return Stage.FAILED
    if not record.get("pausedAt"):
        return Stage.CLAIMED
    if not (name := get_current_node(record)):
        # If no node is left, pools are not edited: a canary without label expressions would select all workers.
        return Stage.NODES_DONE
    for field, previous_stage in (("labelledAt", Stage.PAUSED), ("editedAt", Stage.LABELLED)):
        if not record.get(field):
            return previous_stage
    return _compute_node_stage(record, name, has_cleanup)


def _compute_node_stage(record: RunRecord, name: str, has_cleanup: HasCleanup) -> Stage:
    node = record["nodes"][name]
    if node.get("upgradedAt"):
        return Stage.CLEANUP
    if node.get("releasedAt"):
        return Stage.RELEASED
    return Stage.JOBS if find_due_job(record, name, has_cleanup) else Stage.PREJOBS_DONE


def get_retry_annotation(run: Resource) -> str:
    """Return the value of the annotation by which a user resumes a run."""
    return str((run["metadata"].get("annotations") or {}).get(RETRY_ANNOTATION) or "")


def is_resume_requested(run: Resource) -> bool:
    """Return whether the spec or the retry annotation has changed since the run stopped."""
    failure = get_record(run).get("failure")
    if not failure:
        return False
    observed = failure.get("generation"), failure.get("retry")
    return observed != (run["metadata"].get("generation", 0), get_retry_annotation(run))


def compute_seconds_since(timestamp: object, now: datetime) -> float:
    """Return the seconds since a time in the record; 0 for a missing or invalid time."""
    try:
        then = datetime.strptime(str(timestamp), TIME_FORMAT).replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return (now - then).total_seconds()


def is_cooling_down(timestamp: object, now: datetime) -> bool:
    """Return whether a correction happened so recently that the next correction waits for the tick."""
    return compute_seconds_since(timestamp, now) < COOLDOWN_SECONDS


def list_current_object_names(run: Resource, kind: str) -> set[str]:
    """Return the name of the run's current node or, for `kind` Job, the names of that node's Jobs."""
    record = get_record(run)
    name = get_current_node(record)
    if kind != "Job" or not name:
        return {name} - {""}
    node_record = record["nodes"].get(name) or {}
    return {str(job.get("name")) for job in (node_record.get("jobs") or {}).values()}
