"""Builds the changes to a run's record: when the run begins, finishes a node, fails or is resumed.

A change is a merge patch for `status.record`. run_record.py derives the stage of the run from the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kube.mutex import pools
from kube.mutex.jobs import format_job_key
from kube.mutex.objects import Reference, Resource, get_canary_name, get_status
from kube.mutex.run_record import (
    HasCleanup,
    RunRecord,
    compute_stage,
    find_due_job,
    format_position,
    get_current_node,
    get_job_entry,
    get_record,
    get_retry_annotation,
    is_node_done,
)
from kube.paths import Object
from kube.times import format_time

JOB_FIELDS = ("namespace", "name", "uid", "createdAt", "endedAt", "result")
"""Recorded fields of one attempt of a Job; the next attempt begins without them."""
MAX_NODES_WITH_JOBS = 50
"""Number of finished nodes whose Jobs stay recorded; the Jobs of all nodes might exceed etcd's size limit."""


def build_run_id(uid: str, run_number: int, now: datetime) -> str:
    """Return the id of a run, which its nodes and Jobs carry as a label value.

    If the record is lost, the number starts from 1 again. The timestamp keeps the id unique, so that the new run does
    not adopt Jobs of the previous one.
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
    """Build the record of a new run: the state of pools, canary and nodes before the run changes anything.

    `pools_by_name` contains the targets' pools and the canary, `pool_names` only the targets' pools. `nodes_by_name` is
    in the order of the upgrades.
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
    """Return the value after applying a merge patch (RFC 7386)."""
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
    """Build the status fields that `kubectl get` shows, with the values that they have after this change."""
    record = apply_merge_patch(get_record(run), change)
    changed_run = {**run, "status": {**get_status(run), "record": record}}
    name = get_current_node(record) if record and not record.get("finishedAt") else ""
    due = find_due_job(record, name, has_cleanup) if name else None
    job = str(get_job_entry(record, name, due).get("name") or "") if due else ""
    progress = f"{format_position(record, name)}: {name}".removeprefix("node ") if name else None
    return {"step": compute_stage(changed_run, has_cleanup).value, "progress": progress, "job": job or None}


def build_pools_change(
    record: RunRecord, state: str, patched: list[str], reclaimed: list[str], now: datetime, *, is_complete: bool
) -> Object:
    """Build the change that records pools as `paused` or `edited`; `state` is one of these.

    The first change only records that all pools have that state. Later changes record which pools were corrected or
    claimed again, including pools whose correction the API server refused.
    """
    timestamp = format_time(now)
    if not record.get(f"{state}At"):
        return {f"{state}At": timestamp} if is_complete else {}
    again = {f"{state}Again": patched, "claimedAgain": reclaimed}
    return {field: dict.fromkeys(names, timestamp) for field, names in again.items() if names}


def build_restored_change(record: RunRecord, pool_names: list[str], now: datetime) -> Object:
    """Build the change that records these pools as restored, {} if all are recorded already.

    The run needs this record while the API server refuses writes to other pools.
    """
    new = [name for name in pool_names if name not in (record.get("restored") or {})]
    return {"restored": dict.fromkeys(new, format_time(now))} if new else {}


def build_node_done_change(record: RunRecord, name: str, field: str, now: datetime) -> Object:
    """Build the change that marks a node as finished; `field` is `cleanedAt` or `droppedAt`.

    The change also removes the recorded Jobs of nodes that finished long ago, because a run of hundreds of nodes has
    thousands of Jobs. The record's `order` determines which nodes these are, because the API server returns maps sorted
    by key. Nodes missing from `order`, in a corrupted record, come first.
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
    """Build the change that stops a run until a user resumes it (MUT-47, MUT-48)."""
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
    """Build the change that resumes a run where it stopped.

    A failed Job gets a new attempt, and a released node gets its full time again. After any other failure, the Job gets
    no new attempt: it may still be running, and the two attempts would run concurrently.
    """
    record, change = get_record(run), {"failure": None}
    name = get_current_node(record)
    if not name:
        return change
    due = find_due_job(record, name, has_cleanup)
    node: Object = {"releasedAt": format_time(now)} if _awaits_upgrade(record, name) else {}
    entry = get_job_entry(record, name, due) if due else {}
    if due and entry.get("name") and entry["name"] == record["failure"].get("job"):
        attempt = int(entry.get("attempt") or 1) + 1
        node["jobs"] = {format_job_key(*due): {"attempt": attempt, **dict.fromkeys(JOB_FIELDS)}}
    return {**change, "nodes": {name: node}} if node else change


def build_time_extension(run: Resource, now: datetime) -> Object:
    """Build the status change that gives the released node its full time again, {} if no node awaits its upgrade."""
    record = get_record(run)
    name = get_current_node(record)
    is_released = bool(name) and _awaits_upgrade(record, name)
    return {"record": {"nodes": {name: {"releasedAt": format_time(now)}}}} if is_released else {}


def _awaits_upgrade(record: RunRecord, name: str) -> bool:
    node = record["nodes"][name]
    return bool(node.get("releasedAt")) and not node.get("upgradedAt")
