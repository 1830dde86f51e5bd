"""What steps write into the record of a run: its beginning, the end of a node's part, what stops and resumes it. Pure.

A change is a merge patch of `status.record`; run_record.py tells how far the run is by it.
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
"""What is recorded of one attempt of a Job; another attempt begins without."""
KEPT = 50
"""So many nodes that are done keep their Jobs: those of all nodes of a large cluster are more than etcd takes."""


def run_id(uid: str, number: int, now: datetime) -> str:
    """What a run's nodes and Jobs carry; a value of a label.

    With the record its number is lost, and the next run counts anew: by the moment no Job of the lost one is its own.
    """
    return f"{uid}-{number}.{int(now.timestamp() * 1000)}"


def begun(run: Item, desired: str, world_pools: Mapping[str, Object], names: list[str], nodes: Mapping[str, Object],
          rules: list[Reference], now: datetime) -> Object:  # fmt: skip
    """The record of a run that begins: what pools, canary and nodes are before anything is changed.

    In: the pools of the targets by name, with the canary's; the names of those of the targets; the nodes in order.
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
    """What a merge patch makes of a value (RFC 7386)."""
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
    """The fields of the status that `kubectl get` shows, once this change of the record is written."""
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
    """The change by which all pools are `paused` or `edited`; once they were, by which some are so again or refused."""
    moment = timestamp(now)
    if not record.get(f"{word}At"):
        return {f"{word}At": moment} if is_all else {}
    again = {f"{word}Again": patched, "claimedAgain": claimed}
    return {field: dict.fromkeys(names, moment) for field, names in again.items() if names}


def restored(record: Record, names: list[str], now: datetime) -> Object:
    """The change by which these pools are given back, while others are refused; those that were are recorded once."""
    new = [name for name in names if name not in (record.get("restored") or {})]
    return {"restored": dict.fromkeys(new, timestamp(now))} if new else {}


def over(record: Record, name: str, field: str, now: datetime) -> Object:
    """The change by which nothing more is to be done for a node: `cleanedAt` or `droppedAt`.

    The Jobs of those that were done long before are forgotten: a run of hundreds of nodes has thousands. Which those
    are the order tells, since a map comes back from the API server by its keys; whom that lacks, if spoiled, is first.
    """
    place = {each: number for number, each in enumerate(record["order"])}
    done = [each for each, known in record["nodes"].items() if known.get("jobs") and is_over(known)]
    done.sort(key=lambda each: place.get(each, -1))
    forgotten: Object = {each: {"jobs": None} for each in done[: 1 - KEPT]}
    return {"released": None, "nodes": {**forgotten, name: {field: timestamp(now)}}}


def failure(run: Item, step: str, message: str, *, node: str = "", job: str = "", now: datetime) -> Object:
    """What stops a run until somebody resumes it (MUT-47, MUT-48)."""
    seen = {"generation": run["metadata"].get("generation", 0), "retry": retry_of(run)}
    return {"failure": {"step": step, "message": message, "node": node, "job": job, "at": timestamp(now), **seen}}


def resumption(run: Item, has_cleanup: HasCleanup, now: datetime) -> Object:
    """The change that resumes a run where it stopped: the Job that failed gets another attempt, a node more time.

    Whatever else stopped it says nothing of the Job, which may be there and run: another attempt would run beside it.
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
    """The change of a status that gives the released node all of its time again; {} where none awaits its upgrade."""
    record = record_of(run)
    name = current(record)
    is_released = bool(name) and _awaits_upgrade(record, name)
    return {"record": {"nodes": {name: {"releasedAt": timestamp(now)}}}} if is_released else {}


def _awaits_upgrade(record: Record, name: str) -> bool:
    node = record["nodes"][name]
    return bool(node.get("releasedAt")) and not node.get("upgradedAt")
