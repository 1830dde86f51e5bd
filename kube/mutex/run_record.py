"""The record of a run in the status of its MutexRunConfig: the original state, and the progress of each node.

Functions are stateless, so the record holds everything that a run has to know. Each step writes its own fields, with
changes that run_changes.py builds; docs/mutex.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from enum import Enum
from typing import Any, NamedTuple, TypeGuard

from kube.mutex.jobs import CLEANUP, MAIN, Outcome, job_key
from kube.mutex.objects import RETRY, Item, Reference, status
from kube.paths import Object
from kube.times import SECONDS

QUARREL_SECONDS = 10
"""Cooldown between two corrections of the same change, in seconds.

A change by another client is undone at once. If the client repeats it within this time, the correction waits for the
tick; otherwise both would write as fast as events travel.
"""
Record = Mapping[str, Any]
HasCleanup = Callable[[Reference], bool]


class Stage(Enum):
    """Stage of a run; the value is what `kubectl get` shows."""

    IDLE = "Idle"
    CLAIMED = "PausingPools"
    PAUSED = "LabellingNodes"
    LABELLED = "EditingPools"
    JOBS = "RunningJobs"
    CLEARED = "ReleasingNode"
    RELEASED = "UpgradingNode"
    CLEANUP = "CleaningUp"
    DONE = "RestoringPools"
    FAILED = "Failed"


class Due(NamedTuple):
    """The Job that a node waits for."""

    kind: str
    rule: Reference


def record_of(run: Item) -> Record:
    """Return the record, or {} if the run config has not had a run yet."""
    return status(run).get("record") or {}


def is_active(run: Item) -> bool:
    """Return whether a run has begun and has not finished."""
    record = record_of(run)
    return bool(record) and not record.get("finishedAt")


def done_version(run: Item) -> str:
    """Return the version that the last run completed, "" if it did not complete."""
    record = record_of(run)
    return str(record["desired"]) if record.get("finishedAt") and not record.get("abandoned") else ""


def ids_under_way(runs: Iterable[Item]) -> set[str]:
    """Return the ids of the active runs."""
    return {str(record_of(run).get("id")) for run in runs if is_active(run)}


def uid_of(record: Record) -> str:
    """Return the uid of the run config that the record belongs to."""
    return uid_of_id(str(record["id"]))


def uid_of_id(run_id: str) -> str:
    """Return the uid of the run config that a run's id contains, "" for an invalid id."""
    return run_id.rpartition("-")[0]


def rules_of(record: Record) -> list[Reference]:
    """Return the rules of a run in their order."""
    return [Reference(each["namespace"], each["name"]) for each in record["rules"]]


def is_over(node: Mapping[str, Any]) -> bool:
    """Return whether the record marks the node as finished or dropped."""
    return bool(node.get("cleanedAt") or node.get("droppedAt"))


def is_there(node: Object | None, record: Record, name: str) -> TypeGuard[Object]:
    """Return whether the recorded node still exists; another node may have registered under its name."""
    return node is not None and node["metadata"]["uid"] == record["nodes"][name]["uid"]


def current(record: Record) -> str:
    """Return the node that the run works on, "" when all are done.

    In a corrupted record, this node may be in `order` but not in `nodes`.
    """
    return next((name for name in record["order"] if not is_over(record["nodes"].get(name) or {})), "")


def position(record: Record, name: str) -> str:
    """Return the node's position in the run as text, such as `node 2 of 5`."""
    order = list(record["order"])
    return f"node {order.index(name) + 1} of {len(order)}" if name in order else f"node ? of {len(order)}"


def unreleased(record: Record) -> list[str]:
    """Return the nodes that keep their labels."""
    return [
        name
        for name in record["order"]
        if not record["nodes"][name].get("releasedAt")
        and name != record.get("released")
        and not is_over(record["nodes"][name])
    ]


def job_entry(record: Record, node: str, due: Due) -> Mapping[str, Any]:
    """Return the recorded attempt and `JOB_FIELDS` of a Job; {} before it was created."""
    found: Mapping[str, Any] = (record["nodes"][node].get("jobs") or {}).get(job_key(*due)) or {}
    return found


def next_job(record: Record, node: str, has_cleanup: HasCleanup) -> Due | None:
    """Return the node's first Job that has not completed, or None; cleanup Jobs follow after the upgrade.

    A Job that was created is awaited even if its rule no longer asks for it. Otherwise it would run concurrently with
    the next node's Job.
    """
    kind = CLEANUP if record["nodes"][node].get("upgradedAt") else MAIN
    for rule in rules_of(record):
        due = Due(kind, rule)
        entry = job_entry(record, node, due)
        is_wanted = kind == MAIN or has_cleanup(rule) or entry.get("name")
        if is_wanted and entry.get("result") != Outcome.COMPLETE.value:
            return due
    return None


def any_cleanup(_rule: Reference) -> bool:
    """Return True, for callers that need only the run's stage, which does not depend on cleanup Jobs."""
    return True


def stage(run: Item, has_cleanup: HasCleanup) -> Stage:
    """Return the stage of the run."""
    record = record_of(run)
    if not is_active(run):
        return Stage.IDLE
    if record.get("failure"):
        return Stage.FAILED
    if not record.get("pausedAt"):
        return Stage.CLAIMED
    if not (name := current(record)):
        return Stage.DONE  # even if no node was labelled: a canary without label expressions would select all workers
    for field, before in (("labelledAt", Stage.PAUSED), ("editedAt", Stage.LABELLED)):
        if not record.get(field):
            return before
    return _stage_of_node(record, name, has_cleanup)


def _stage_of_node(record: Record, name: str, has_cleanup: HasCleanup) -> Stage:
    node = record["nodes"][name]
    if node.get("upgradedAt"):
        return Stage.CLEANUP
    if node.get("releasedAt"):
        return Stage.RELEASED
    return Stage.JOBS if next_job(record, name, has_cleanup) else Stage.CLEARED


def retry_of(run: Item) -> str:
    """Return the value of the annotation by which a user resumes a run."""
    return str((run["metadata"].get("annotations") or {}).get(RETRY) or "")


def is_resumed(run: Item) -> bool:
    """Return whether the spec or the retry annotation has changed since the run stopped."""
    stopped = record_of(run).get("failure")
    if not stopped:
        return False
    seen = stopped.get("generation"), stopped.get("retry")
    return seen != (run["metadata"].get("generation", 0), retry_of(run))


def seconds_since(moment: object, now: datetime) -> float:
    """Return the seconds since a time in the record; 0 for a missing or invalid time."""
    try:
        then = datetime.strptime(str(moment), SECONDS).replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return (now - then).total_seconds()


def is_fresh(moment: object, now: datetime) -> bool:
    """Return whether a correction happened so recently that the next one waits for the tick."""
    return seconds_since(moment, now) < QUARREL_SECONDS


def at_work(run: Item, kind: str) -> set[str]:
    """Return the node that the run works on, or, for the kind Job, the names of that node's Jobs."""
    record = record_of(run)
    name = current(record)
    if kind != "Job" or not name:
        return {name} - {""}
    known = record["nodes"].get(name) or {}
    return {str(job.get("name")) for job in (known.get("jobs") or {}).values()}
