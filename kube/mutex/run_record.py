"""The record of a run in the status of its MutexRunConfig: what was before, and how far each node is. Pure.

Functions keep nothing, so all that a run has to know is here. Each step writes the fields of its own, as run_changes.py
makes them; docs/mutex.md lists them.
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
"""What somebody undoes is done again at once; undone again within these it waits for the tick, or two would write for
ever as fast as events travel."""
Record = Mapping[str, Any]
HasCleanup = Callable[[Reference], bool]


class Stage(Enum):
    """How far a run is; the value is what `kubectl get` shows."""

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
    """The record, {} when the run config has had no run yet."""
    return status(run).get("record") or {}


def is_active(run: Item) -> bool:
    """Whether a run is under way: it has begun and is not finished."""
    record = record_of(run)
    return bool(record) and not record.get("finishedAt")


def done_version(run: Item) -> str:
    """The version of the last run, which is finished; "" for none."""
    record = record_of(run)
    return str(record["desired"]) if record.get("finishedAt") and not record.get("abandoned") else ""


def ids_under_way(runs: Iterable[Item]) -> set[str]:
    """The ids of the runs that are under way."""
    return {str(record_of(run).get("id")) for run in runs if is_active(run)}


def uid_of(record: Record) -> str:
    """The uid of the run config."""
    return uid_of_id(str(record["id"]))


def uid_of_id(run_id: str) -> str:
    """The uid of the run config of a run; "" for what is no id of a run."""
    return run_id.rpartition("-")[0]


def rules_of(record: Record) -> list[Reference]:
    """The rules of a run in their order."""
    return [Reference(each["namespace"], each["name"]) for each in record["rules"]]


def is_over(node: Mapping[str, Any]) -> bool:
    """Whether nothing more is to be done for a node of the record."""
    return bool(node.get("cleanedAt") or node.get("droppedAt"))


def is_there(node: Object | None, record: Record, name: str) -> TypeGuard[Object]:
    """Whether the node of the record is there: another one may have registered under its name."""
    return node is not None and node["metadata"]["uid"] == record["nodes"][name]["uid"]


def current(record: Record) -> str:
    """The node whose turn it is, "" when all are done; one of a spoiled record may be in the order alone."""
    return next((name for name in record["order"] if not is_over(record["nodes"].get(name) or {})), "")


def position(record: Record, name: str) -> str:
    """Which node of how many it is, in words."""
    order = list(record["order"])
    return f"node {order.index(name) + 1} of {len(order)}" if name in order else f"node ? of {len(order)}"


def unreleased(record: Record) -> list[str]:
    """The nodes that keep their labels."""
    return [
        name
        for name in record["order"]
        if not record["nodes"][name].get("releasedAt")
        and name != record.get("released")
        and not is_over(record["nodes"][name])
    ]


def job_entry(record: Record, node: str, due: Due) -> Mapping[str, Any]:
    """What is known of a Job: attempt and `JOB_FIELDS`; {} before it was created."""
    found: Mapping[str, Any] = (record["nodes"][node].get("jobs") or {}).get(job_key(*due)) or {}
    return found


def next_job(record: Record, node: str, has_cleanup: HasCleanup) -> Due | None:
    """The first Job of a node that has not completed: before the upgrade one of each rule, behind it the cleanups.

    One that was created is waited for, whatever has become of its rule: the next node's would run beside it.
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
    """For whoever asks how far a run is, and has not read its rules: that does not depend on it."""
    return True


def stage(run: Item, has_cleanup: HasCleanup) -> Stage:
    """How far the run is."""
    record = record_of(run)
    if not is_active(run):
        return Stage.IDLE
    if record.get("failure"):
        return Stage.FAILED
    if not record.get("pausedAt"):
        return Stage.CLAIMED
    if not (name := current(record)):
        return Stage.DONE  # also where no node was left to be labelled: a canary without labels would take all workers
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
    """The value of the annotation by which a person resumes a run."""
    return str((run["metadata"].get("annotations") or {}).get(RETRY) or "")


def is_resumed(run: Item) -> bool:
    """Whether somebody has written the spec, or the annotation, since the run stopped."""
    stopped = record_of(run).get("failure")
    if not stopped:
        return False
    seen = stopped.get("generation"), stopped.get("retry")
    return seen != (run["metadata"].get("generation", 0), retry_of(run))


def seconds_since(moment: object, now: datetime) -> float:
    """Seconds since a time of the record; 0 for none."""
    try:
        then = datetime.strptime(str(moment), SECONDS).replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return (now - then).total_seconds()


def is_fresh(moment: object, now: datetime) -> bool:
    """Whether something was done so few seconds ago that, undone since, it waits for the tick."""
    return seconds_since(moment, now) < QUARREL_SECONDS


def at_work(run: Item, kind: str) -> set[str]:
    """The node whose turn it is, or with the kind Job the names of its Jobs."""
    record = record_of(run)
    name = current(record)
    if kind != "Job" or not name:
        return {name} - {""}
    known = record["nodes"].get(name) or {}
    return {str(job.get("name")) for job in (known.get("jobs") or {}).values()}
