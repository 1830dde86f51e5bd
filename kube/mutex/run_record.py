"""The record of a run in the status of its MutexRunConfig: the original state, and the progress of each node.

Functions are stateless, so the record contains everything that a run must remember. Each function writes its own
fields, with changes that this module builds; docs/mutex.md lists the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from enum import Enum
from typing import Any, NamedTuple, TypeGuard

from kube.mutex import pools
from kube.mutex.jobs import CLEANUP, MAIN, JobOutcome, format_job_key
from kube.mutex.objects import RETRY_ANNOTATION, Reference, Resource, get_canary_name, get_status, is_deleting
from kube.paths import Object
from kube.times import TIME_FORMAT, format_time

COOLDOWN_SECONDS = 10
"""Minimum time between two corrections of the same pool, in seconds.

A change by another client is undone immediately. If that client repeats the change within this time, the correction
waits for `resync-runs`. Otherwise, both clients would write as fast as events are delivered.
"""
JOB_FIELDS = ("namespace", "name", "uid", "createdAt", "endedAt", "result")
"""Recorded fields of one attempt of a Job; they are cleared before the next attempt."""
MAX_NODES_WITH_JOBS = 50
"""Maximum number of finished nodes whose Jobs stay in the record, which would otherwise exceed etcd's size limit."""
RunRecord = Mapping[str, Any]
HasCleanup = Callable[[Reference], bool]


class Stage(Enum):
    """The stage of a run; the value is shown by `kubectl get`."""

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
    """The Job that a node of a run waits for: its kind and its MutexRule."""

    job_kind: str
    rule: Reference


def get_record(run: Resource) -> RunRecord:
    """Return the run's record, {} if the MutexRunConfig has not had a run yet."""
    return get_status(run).get("record") or {}


def is_active(run: Resource) -> bool:
    """Return whether a run has begun and not finished."""
    record = get_record(run)
    return bool(record) and not record.get("finishedAt")


def is_active_undeleted(run: Resource) -> bool:
    """Return whether a run has begun and not finished, and its MutexRunConfig is not being deleted."""
    return is_active(run) and not is_deleting(run)


def get_finished_version(run: Resource) -> str:
    """Return the version to which the last run upgraded its nodes, "" if that run did not finish or was abandoned."""
    record = get_record(run)
    return str(record["desired"]) if record.get("finishedAt") and not record.get("abandoned") else ""


def list_active_run_ids(runs: Iterable[Resource]) -> set[str]:
    """Return the ids of the active runs."""
    return {str(get_record(run).get("id")) for run in runs if is_active(run)}


def get_run_config_uid(record: RunRecord) -> str:
    """Return the uid of the MutexRunConfig that the record belongs to."""
    return parse_run_config_uid(str(record["id"]))


def parse_run_config_uid(run_id: str) -> str:
    """Return the uid of the MutexRunConfig in a run's id, "" if the id is invalid."""
    return run_id.rpartition("-")[0]


def list_recorded_rules(record: RunRecord) -> list[Reference]:
    """Return references to the run's MutexRules, in the order of the record."""
    return [Reference(rule["namespace"], rule["name"]) for rule in record["rules"]]


def is_node_done(node_record: Mapping[str, Any]) -> bool:
    """Return whether the node is finished or dropped according to its part of the record."""
    return bool(node_record.get("cleanedAt") or node_record.get("droppedAt"))


def is_recorded_node(node: Object | None, record: RunRecord, name: str) -> TypeGuard[Object]:
    """Return whether the recorded node still exists; a replacement node may have registered under its name."""
    return node is not None and node["metadata"]["uid"] == record["nodes"][name]["uid"]


def get_current_node(record: RunRecord) -> str:
    """Return the name of the node that the run works on, "" if all nodes are done.

    In a corrupted record, this node may be in `order` but not in `nodes`.
    """
    return next((name for name in record["order"] if not is_node_done(record["nodes"].get(name) or {})), "")


def format_position(record: RunRecord, name: str) -> str:
    """Format the node's position in the run, such as `node 2 of 5`."""
    order = list(record["order"])
    return f"node {order.index(name) + 1} of {len(order)}" if name in order else f"node ? of {len(order)}"


def list_unreleased_nodes(record: RunRecord) -> list[str]:
    """Return the names of the nodes that the run has not released yet, and that must have the run's labels."""
    return [
        name
        for name in record["order"]
        if not record["nodes"][name].get("releasedAt")
        and name != record.get("released")
        and not is_node_done(record["nodes"][name])
    ]


def get_job_entry(record: RunRecord, node_name: str, due_job: DueJob) -> Mapping[str, Any]:
    """Return the Job's attempt number and `JOB_FIELDS` in the record, {} before the Job is created."""
    entry: Mapping[str, Any] = (record["nodes"][node_name].get("jobs") or {}).get(format_job_key(*due_job)) or {}
    return entry


def find_due_job(record: RunRecord, node_name: str, has_cleanup: HasCleanup) -> DueJob | None:
    """Return the node's first Job that has not completed, None if there is none; cleanup Jobs follow the upgrade.

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


def compute_stage(run: Resource) -> Stage:
    """Return the stage of the run according to its record."""
    record = get_record(run)
    if not is_active(run):
        return Stage.IDLE
    if record.get("failure"):
        return Stage.FAILED
    if not record.get("pausedAt"):
        return Stage.CLAIMED
    if not (name := get_current_node(record)):
        # If no node is left, the pools are not edited: a canary without label expressions would select all workers.
        return Stage.NODES_DONE
    for field, stage in (("labelledAt", Stage.PAUSED), ("editedAt", Stage.LABELLED)):
        if not record.get(field):
            return stage
    for field, stage in (("upgradedAt", Stage.CLEANUP), ("releasedAt", Stage.RELEASED)):
        if record["nodes"][name].get(field):
            return stage
    # Before the upgrade, each rule has a Job, whether or not it has a cleanup Job.
    return Stage.JOBS if find_due_job(record, name, lambda _rule: False) else Stage.PREJOBS_DONE


def get_retry_annotation(run: Resource) -> str:
    """Return the value of the annotation with which a user resumes a halted run."""
    return str((run["metadata"].get("annotations") or {}).get(RETRY_ANNOTATION) or "")


def is_resume_requested(run: Resource) -> bool:
    """Return whether the spec or the retry annotation has changed since a failure halted the run."""
    failure = get_record(run).get("failure")
    if not failure:
        return False
    observed = failure.get("generation"), failure.get("retry")
    return observed != (run["metadata"].get("generation", 0), get_retry_annotation(run))


def compute_seconds_since(timestamp: object, now: datetime) -> float:
    """Return the seconds since a time in the record, 0 if that time is missing or invalid."""
    try:
        then = datetime.strptime(str(timestamp), TIME_FORMAT).replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return (now - then).total_seconds()


def is_cooling_down(timestamp: object, now: datetime) -> bool:
    """Return whether the last correction is so recent that the next one must wait for `resync-runs`."""
    return compute_seconds_since(timestamp, now) < COOLDOWN_SECONDS


def list_current_object_names(run: Resource, kind: str) -> set[str]:
    """Return the name of the run's current node, or, if `kind` is Job, the names of that node's Jobs."""
    record = get_record(run)
    name = get_current_node(record)
    if kind != "Job" or not name:
        return {name} - {""}
    node_record = record["nodes"].get(name) or {}
    return {str(job.get("name")) for job in (node_record.get("jobs") or {}).values()}


def build_run_id(uid: str, run_number: int, now: datetime) -> str:
    """Build the id of a run, which is a label value on its nodes and Jobs.

    If the record is lost, the run number starts from 1 again. The timestamp keeps the id unique, so that the new run
    does not adopt the previous run's Jobs.
    """
    return f"{uid}-{run_number}.{int(now.timestamp() * 1000)}"


def build_begin_change(
    run: Resource,
    desired_version: str,
    pools_by_name: Mapping[str, Object],
    pool_names: list[str],
    nodes_by_name: Mapping[str, Object],
    rules: list[Reference],
    now: datetime,
) -> Object:
    """Build the record of a new run: the state of pools, canary and nodes before the run changes them.

    `pools_by_name` contains the target pools and the canary; `pool_names` are the names of the target pools. The order
    of `nodes_by_name` is the order of the upgrades.
    """
    number = int(get_record(run).get("number") or 0) + 1
    canary = pools_by_name[get_canary_name(run)]
    return {
        "id": build_run_id(run["metadata"]["uid"], number, now),
        "number": number,
        "desired": desired_version,
        "startedAt": format_time(now),
        "rules": [{"namespace": rule.namespace, "name": rule.name} for rule in rules],
        "canary": {"name": pools.get_name(canary), **_build_pool_record(canary)},
        "pools": {name: _build_pool_record(pools_by_name[name]) for name in pool_names},
        "order": list(nodes_by_name),
        "nodes": {name: {"uid": node["metadata"]["uid"]} for name, node in nodes_by_name.items()},
    }


def _build_pool_record(pool: Object) -> Object:
    selector = pools.get_selector(pool)
    fields: Object = {"uid": pool["metadata"]["uid"], "paused": pools.is_paused(pool)}
    return {**fields, "selector": dict(selector)} if selector is not None else fields


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` with a JSON merge patch applied (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = apply_merge_patch(merged.get(name), value)
    return merged


def build_printed_fields(run: Resource, change: Object, has_cleanup: HasCleanup) -> Object:
    """Build the status fields that `kubectl get` shows, with their values after this change of the record."""
    record = apply_merge_patch(get_record(run), change)
    changed_run = {**run, "status": {**get_status(run), "record": record}}
    name = get_current_node(record) if record and not record.get("finishedAt") else ""
    due = find_due_job(record, name, has_cleanup) if name else None
    job = str(get_job_entry(record, name, due).get("name") or "") if due else ""
    progress = f"{format_position(record, name)}: {name}".removeprefix("node ") if name else None
    return {"step": compute_stage(changed_run).value, "progress": progress, "job": job or None}


def build_pools_change(
    record: RunRecord, state: str, patched: list[str], reclaimed: list[str], now: datetime, *, is_complete: bool
) -> Object:
    """Build the change that records that pools are `paused` or `edited`, which is the value of `state`.

    The first change records only that all pools have this state. Later changes record which pools were corrected or
    claimed again, including pools whose correction the API server rejected.
    """
    timestamp = format_time(now)
    if not record.get(f"{state}At"):
        return {f"{state}At": timestamp} if is_complete else {}
    again = {f"{state}Again": patched, "claimedAgain": reclaimed}
    return {field: dict.fromkeys(names, timestamp) for field, names in again.items() if names}


def build_restored_change(record: RunRecord, pool_names: list[str], now: datetime) -> Object:
    """Build the change that records these pools as restored; {} if all are already recorded.

    The run needs this record while the API server rejects writes to other pools.
    """
    new = [name for name in pool_names if name not in (record.get("restored") or {})]
    return {"restored": dict.fromkeys(new, format_time(now))} if new else {}


def build_node_done_change(record: RunRecord, name: str, field: str, now: datetime) -> Object:
    """Build the change that records a node as done; `field` is `cleanedAt` or `droppedAt`.

    The change also removes the recorded Jobs of nodes that finished long ago, because a run of hundreds of nodes has
    thousands of Jobs. The record's `order` determines which nodes these are, because the API server sorts the keys of
    maps. Nodes that are missing from `order`, in a corrupted record, come first.
    """
    order_index = {node_name: number for number, node_name in enumerate(record["order"])}
    done_names = [
        node_name
        for node_name, node_record in record["nodes"].items()
        if node_record.get("jobs") and is_node_done(node_record)
    ]
    done_names.sort(key=lambda node_name: order_index.get(node_name, -1))
    forgotten: Object = {node_name: {"jobs": None} for node_name in done_names[: 1 - MAX_NODES_WITH_JOBS]}
    return {"released": None, "nodes": {**forgotten, name: {field: format_time(now)}}}


def build_failure_change(
    run: Resource, step: str, message: str, *, node_name: str = "", job_name: str = "", now: datetime
) -> Object:
    """Build the change that records a failure, which halts the run until a user resumes it (MUT-47, MUT-48)."""
    observed = {"generation": run["metadata"].get("generation", 0), "retry": get_retry_annotation(run)}
    return {
        "failure": {
            "step": step,
            "message": message,
            "node": node_name,
            "job": job_name,
            "at": format_time(now),
            **observed,
        }
    }


def build_resume_change(run: Resource, has_cleanup: HasCleanup, now: datetime) -> Object:
    """Build the change that resumes a run where it was halted.

    A failed Job gets a new attempt, and a released node gets its full time again. After any other failure, the current
    Job gets no new attempt, because it may still be running, and the two attempts would run concurrently.
    """
    record, change = get_record(run), {"failure": None}
    name = get_current_node(record)
    if not name:
        return change
    due = find_due_job(record, name, has_cleanup)
    node: Object = {"releasedAt": format_time(now)} if _is_released_but_not_upgraded(record, name) else {}
    entry = get_job_entry(record, name, due) if due else {}
    if due and entry.get("name") and entry["name"] == record["failure"].get("job"):
        attempt = int(entry.get("attempt") or 1) + 1
        node["jobs"] = {format_job_key(*due): {"attempt": attempt, **dict.fromkeys(JOB_FIELDS)}}
    return {**change, "nodes": {name: node}} if node else change


def build_time_extension(run: Resource, now: datetime) -> Object:
    """Build the status change that gives a released node its full time again; {} if no node awaits its upgrade."""
    record = get_record(run)
    name = get_current_node(record)
    is_released = bool(name) and _is_released_but_not_upgraded(record, name)
    return {"record": {"nodes": {name: {"releasedAt": format_time(now)}}}} if is_released else {}


def _is_released_but_not_upgraded(record: RunRecord, name: str) -> bool:
    node = record["nodes"][name]
    return bool(node.get("releasedAt")) and not node.get("upgradedAt")
