"""The record of a run in the status of its MutexRunConfig: what was before, and how far each node is. Pure.

Functions keep nothing, so all that a run has to know is here. Each step writes the fields of its own; docs/mutex.md
lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from enum import Enum
from typing import Any, NamedTuple, TypeGuard

from kube.mutex import pools
from kube.mutex.jobs import CLEANUP, MAIN, Outcome, job_key
from kube.mutex.objects import RETRY, Item, Reference, canary_name, status
from kube.paths import Object
from kube.times import SECONDS, timestamp

Record = Mapping[str, Any]
JOB_FIELDS = ("namespace", "name", "uid", "createdAt", "endedAt", "result")
"""What is recorded of one attempt of a Job; another attempt begins without."""
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


def run_id(uid: str, number: int, now: datetime) -> str:
    """What a run's nodes and Jobs carry; a value of a label.

    With the record its number is lost, and the next run counts anew: by the moment no Job of the lost one is its own.
    """
    return f"{uid}-{number}.{int(now.timestamp() * 1000)}"


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


def failure(run: Item, step: str, message: str, *, node: str = "", job: str = "", now: datetime) -> Object:
    """What stops a run until somebody resumes it (MUT-47, MUT-48)."""
    seen = {"generation": run["metadata"].get("generation", 0), "retry": retry_of(run)}
    return {"failure": {"step": step, "message": message, "node": node, "job": job, "at": timestamp(now), **seen}}


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


def seconds_since(moment: object, now: datetime) -> float:
    """Seconds since a time of the record; 0 for none."""
    try:
        then = datetime.strptime(str(moment), SECONDS).replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return (now - then).total_seconds()


def at_work(run: Item, kind: str) -> set[str]:
    """The node whose turn it is, or with the kind Job the names of its Jobs."""
    record = record_of(run)
    name = current(record)
    if kind != "Job" or not name:
        return {name} - {""}
    known = record["nodes"].get(name) or {}
    return {str(job.get("name")) for job in (known.get("jobs") or {}).values()}
