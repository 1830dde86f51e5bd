"""Changes to the record of a run: its beginning, the end of each node's work, its failure and its resumption.

A change is a merge patch of `status.record`. run_record.py derives the stage of the run from the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kube.mutex import pools
from kube.mutex.jobs import job_key
from kube.mutex.objects import Item, Reference, canary_name, status
from kube.mutex.run_record import (
    HasCleanup,
    Record,
    current,
    is_over,
    job_entry,
    next_job,
    position,
    record_of,
    retry_of,
    stage,
)
from kube.paths import Object
from kube.times import timestamp

JOB_FIELDS = ("namespace", "name", "uid", "createdAt", "endedAt", "result")
"""Recorded fields of one attempt of a Job; the next attempt begins without them."""
KEPT = 50
"""Number of finished nodes whose Jobs stay recorded; the Jobs of all nodes might exceed etcd's size limit."""


def run_id(uid: str, number: int, now: datetime) -> str:
    """Return the id of a run, which its nodes and Jobs carry as a label value.

    If the record is lost, the number starts from 1 again. The timestamp keeps the id unique, so that the new run does
    not adopt Jobs of the lost one.
    """
    return f"{uid}-{number}.{int(now.timestamp() * 1000)}"


def begun(run: Item, desired: str, world_pools: Mapping[str, Object], names: list[str], nodes: Mapping[str, Object],
          rules: list[Reference], now: datetime) -> Object:  # fmt: skip
    """Build the record of a new run: the state of pools, canary and nodes before the run changes anything.

    In: the pools of the targets and the canary, by name; the names of the targets' pools; the nodes in order.
    """
    number = int(record_of(run).get("number") or 0) + 1
    canary = world_pools[canary_name(run)]
    return {
        "id": run_id(run["metadata"]["uid"], number, now),
        "number": number,
        "desired": desired,
        "startedAt": timestamp(now),
        "rules": [{"namespace": rule.namespace, "name": rule.name} for rule in rules],
        "canary": {"name": pools.name_of(canary), **_before(canary)},
        "pools": {name: _before(world_pools[name]) for name in names},
        "order": list(nodes),
        "nodes": {name: {"uid": node["metadata"]["uid"]} for name, node in nodes.items()},
    }


def _before(pool: Object) -> Object:
    chosen = pools.selector(pool)
    known: Object = {"uid": pool["metadata"]["uid"], "paused": pools.is_paused(pool)}
    return {**known, "selector": dict(chosen)} if chosen is not None else known


def with_change(known: Any, change: Any) -> Any:
    """Return the value after applying a merge patch (RFC 7386)."""
    if not isinstance(change, Mapping):
        return change
    merged = dict(known) if isinstance(known, Mapping) else {}
    for name, value in change.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = with_change(merged.get(name), value)
    return merged


def shown(run: Item, change: Object, has_cleanup: HasCleanup) -> Object:
    """Return the status fields that `kubectl get` shows, as they are after this change to the record."""
    record = with_change(record_of(run), change)
    now = {**run, "status": {**status(run), "record": record}}
    name = current(record) if record and not record.get("finishedAt") else ""
    due = next_job(record, name, has_cleanup) if name else None
    job = str(job_entry(record, name, due).get("name") or "") if due else ""
    progress = f"{position(record, name)}: {name}".removeprefix("node ") if name else None
    return {"step": stage(now, has_cleanup).value, "progress": progress, "job": job or None}


def pools_changed(
    record: Record, word: str, patched: list[str], claimed: list[str], now: datetime, *, is_all: bool
) -> Object:
    """Build the change that records pools as `paused` or `edited`; `word` is one of these.

    The first time, it records only that all pools are done. After that, it records which pools were corrected or
    claimed again, including those whose write was refused.
    """
    moment = timestamp(now)
    if not record.get(f"{word}At"):
        return {f"{word}At": moment} if is_all else {}
    again = {f"{word}Again": patched, "claimedAgain": claimed}
    return {field: dict.fromkeys(names, moment) for field, names in again.items() if names}


def restored(record: Record, names: list[str], now: datetime) -> Object:
    """Build the change that records these pools as restored while others are refused; each is recorded only once."""
    new = [name for name in names if name not in (record.get("restored") or {})]
    return {"restored": dict.fromkeys(new, timestamp(now))} if new else {}


def over(record: Record, name: str, field: str, now: datetime) -> Object:
    """Build the change that marks a node as finished; `field` is `cleanedAt` or `droppedAt`.

    It removes the Jobs of nodes that finished long before, because a run of hundreds of nodes has thousands of Jobs.
    `order` determines which nodes these are, because the API server returns maps sorted by key. Nodes missing in
    `order`, in a corrupted record, come first.
    """
    place = {each: number for number, each in enumerate(record["order"])}
    done = [each for each, known in record["nodes"].items() if known.get("jobs") and is_over(known)]
    done.sort(key=lambda each: place.get(each, -1))
    forgotten: Object = {each: {"jobs": None} for each in done[: 1 - KEPT]}
    return {"released": None, "nodes": {**forgotten, name: {field: timestamp(now)}}}


def failure(run: Item, step: str, message: str, *, node: str = "", job: str = "", now: datetime) -> Object:
    """Build the change that stops a run until a user resumes it (MUT-47, MUT-48)."""
    seen = {"generation": run["metadata"].get("generation", 0), "retry": retry_of(run)}
    return {"failure": {"step": step, "message": message, "node": node, "job": job, "at": timestamp(now), **seen}}


def resumption(run: Item, has_cleanup: HasCleanup, now: datetime) -> Object:
    """Build the change that resumes a run where it stopped.

    A failed Job gets another attempt, and a released node its full time. After any other failure, the Job gets no new
    attempt: it may still be running, and the two attempts would run concurrently.
    """
    record, change = record_of(run), {"failure": None}
    name = current(record)
    if not name:
        return change
    due = next_job(record, name, has_cleanup)
    node: Object = {"releasedAt": timestamp(now)} if _awaits_upgrade(record, name) else {}
    entry = job_entry(record, name, due) if due else {}
    if due and entry.get("name") and entry["name"] == record["failure"].get("job"):
        attempt = int(entry.get("attempt") or 1) + 1
        node["jobs"] = {job_key(*due): {"attempt": attempt, **dict.fromkeys(JOB_FIELDS)}}
    return {**change, "nodes": {name: node}} if node else change


def more_time(run: Item, now: datetime) -> Object:
    """Build the status change that gives the released node its full time again; {} if no node awaits its upgrade."""
    record = record_of(run)
    name = current(record)
    is_released = bool(name) and _awaits_upgrade(record, name)
    return {"record": {"nodes": {name: {"releasedAt": timestamp(now)}}}} if is_released else {}


def _awaits_upgrade(record: Record, name: str) -> bool:
    node = record["nodes"][name]
    return bool(node.get("releasedAt")) and not node.get("upgradedAt")
