"""Reports on runs of the upgrade mutex: the steps, the nodes with their Jobs, and what a run waits for. Pure functions.

All data comes from the status of the MutexRunConfig, so reading it requires no other permission.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kube.mutex import run_record
from kube.mutex.jobs import CLEANUP, MAIN, Outcome
from kube.mutex.objects import Item, condition, full_name, is_deleting, status
from kube.mutex.run_record import Due, Record, Stage, any_cleanup, is_over, job_entry, record_of, rules_of
from kube.mutex.validation import AVAILABLE, CHECKED, CONFIG_VALIDATED, READY, is_early
from kube.paths import Object

DONE, NOW, TO_COME, STOPPED = "done", "now", "to come", "stopped"
"""States of a step."""
NEW, ENDING = "New", "Ending"
"""Shown instead of `status.step`: before the first status, and once deletion is requested."""
WAITING, UPGRADED, GONE = "Waiting", "Done", "Gone"
"""States of a node: not yet started, completed, or dropped from the run because it was deleted."""
PAUSED, UPGRADE = "TargetPoolsPaused", "NodeUpgrade"


class Wait(NamedTuple):
    """What a run waits for, since when, and the remedy if the run needs an administrator."""

    what: str
    since: str
    remedy: str = ""


def step_word(run: Item) -> str:
    """Return the progress of the run in one word."""
    return ENDING if is_deleting(run) else str(status(run).get("step") or NEW)


def report(run: Item) -> Object:
    """Return the full report, which is the command's JSON output and the source of tables and pages."""
    record, metadata = record_of(run), run["metadata"]
    wait = waits_for(run)
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "step": step_word(run),
        "version": record.get("desired") or "",
        "progress": status(run).get("progress") or "",
        "job": status(run).get("job") or "",
        "created": metadata["creationTimestamp"],
        "begun": record.get("startedAt") or "",
        "finished": record.get("finishedAt") or "",
        "waits": wait._asdict() if wait else None,
        "steps": steps(run),
        "nodes": [_node(run, name) for name in record.get("order") or []],
        "conditions": [dict(each) for each in status(run).get("conditions") or []],
    }


def steps(run: Item) -> list[Object]:
    """Return the steps of a run in order, each with its state and the time of its completion."""
    record = record_of(run)
    valid = condition(run, CONFIG_VALIDATED)
    nodes = record.get("nodes") or {}
    over = [str(node.get("cleanedAt") or node["droppedAt"]) for node in nodes.values() if is_over(node)]
    is_upgraded = bool(nodes) and len(over) == len(nodes)
    upgraded = f"Nodes upgraded ({len(over)} of {len(nodes)})" if nodes else "Nodes upgraded"
    done = {
        "Config valid": valid.get("lastTransitionTime") if valid.get("status") == "True" else None,
        "Upgrade found, pools claimed": record.get("startedAt"),
        "Pools paused": record.get("pausedAt"),
        "Nodes labelled": record.get("labelledAt"),
        "Pools edited": record.get("editedAt"),
        upgraded: max(over) if is_upgraded else None,
        "Pools given back": record.get("finishedAt"),
    }
    at = next((name for name, moment in done.items() if not moment), "")
    stopped = bool(record.get("failure")) or valid.get("status") == "False"
    return [
        {"step": name, "state": DONE if moment else _state(name == at, stopped), "at": moment or ""}
        for name, moment in done.items()
    ]


def _state(is_at: bool, stopped: bool) -> str:
    return (STOPPED if stopped else NOW) if is_at else TO_COME


def _node(run: Item, name: str) -> Object:
    record = record_of(run)
    node = record["nodes"][name]
    is_current = run_record.is_active(run) and name == run_record.current(record)
    word = UPGRADED if node.get("cleanedAt") else GONE if node.get("droppedAt") else WAITING
    state = run_record.stage(run, any_cleanup).value if is_current and _is_begun(record) else word
    found = list(_jobs(record, name))
    times = [node.get(field) for field in ("droppedAt", "cleanedAt", "upgradedAt", "releasedAt")]
    since = next(filter(None, times), found[0]["created"] if found else record.get("startedAt"))
    return {"node": name, "state": state, "since": since or "", "jobs": found}


def _is_begun(record: Record) -> bool:
    """Return whether nodes are being processed; before that, all nodes wait."""
    return bool(record.get("editedAt"))


def _jobs(record: Record, node: str) -> Iterator[Object]:
    """Yield the Jobs that were created for a node, in order."""
    for kind in (MAIN, CLEANUP):
        for rule in rules_of(record):
            entry = job_entry(record, node, Due(kind, rule))
            if entry.get("name"):
                yield _job(record, kind, str(rule), entry)


def _job(record: Record, kind: str, rule: str, entry: Mapping[str, Any]) -> Object:
    failed = entry["name"] == (record.get("failure") or {}).get("job")
    outcome = Outcome.FAILED if failed else Outcome.RUNNING
    namespace = str(entry.get("namespace") or "")
    where = f"-n {namespace} " if namespace else ""
    return {
        "rule": rule,
        "kind": kind,
        "namespace": namespace,
        "name": entry["name"],
        "attempt": int(entry.get("attempt") or 1),
        "result": entry.get("result") or outcome.value,
        "created": entry.get("createdAt") or "",
        "ended": entry.get("endedAt") or "",
        "logs": f"kubectl logs {where}job/{entry['name']}",
    }


def waits_for(run: Item) -> Wait | None:
    """Return what the run waits for now, or None if it waits for nothing, for example once it is finished."""
    if is_deleting(run):
        return Wait("what the run has changed to be given back", str(run["metadata"]["deletionTimestamp"]))
    if not status(run):
        return Wait("somebody to judge it", run["metadata"]["creationTimestamp"], "do the functions run?")
    record, invalid = record_of(run), condition(run, CONFIG_VALIDATED)
    if stopped := record.get("failure"):
        remedy = f"mend the cause, then kubectl maintenance mutex retry {full_name(run)}"
        return Wait(str(stopped.get("message") or ""), str(stopped.get("at") or ""), remedy)
    if invalid.get("status") == "False":
        return _told(invalid, "mend what it names")
    if run_record.is_active(run):
        return _of_stage(run, run_record.stage(run, any_cleanup))
    return None if step_word(run) == "Finished" else _of_idle(run)


def _told(known: Mapping[str, Any], remedy: str = "") -> Wait:
    return Wait(str(known.get("message") or ""), str(known.get("lastTransitionTime") or ""), remedy)


def _of_idle(run: Item) -> Wait | None:
    """Return what a run that has not started waits for: other runs, or an upgrade."""
    others = condition(run, PAUSED)
    if condition(run, AVAILABLE).get("status") == "True":
        return _told(others if others.get("status") == "False" else condition(run, AVAILABLE))
    lacking = (condition(run, kind) for kind in (CHECKED, READY, AVAILABLE))
    return next((_told(each) for each in lacking if each.get("status") == "False"), None)


def _of_stage(run: Item, at: Stage) -> Wait:
    record, paused = record_of(run), condition(run, PAUSED)
    started = str(record.get("startedAt") or "")
    if at is Stage.CLAIMED and paused.get("status") == "False":
        return _told(paused)
    if is_early(run) and condition(run, READY):
        return _told(condition(run, READY))
    early = {
        Stage.CLAIMED: ("its pools to be paused", started),
        Stage.PAUSED: ("its nodes to be labelled", str(record.get("pausedAt"))),
        Stage.LABELLED: ("its pools to be edited", str(record.get("labelledAt"))),
    }
    return Wait(*early[at]) if at in early else _of_node(run, at)


def _of_node(run: Item, at: Stage) -> Wait:
    record = record_of(run)
    name = run_record.current(record)
    if not name:
        return Wait("its pools to be given back", max(_moments(record, *record["order"]), default=""))
    told, node = condition(run, UPGRADE), record["nodes"][name]
    is_told = told.get("status") == "False" and name in str(told.get("message"))
    if at is Stage.RELEASED:
        what = told["message"] if is_told else f"node {name} to carry version {record['desired']}"
        return Wait(str(what), str(node["releasedAt"]))
    since = max(_moments(record, name), default=str(record.get("editedAt") or ""))
    if at is Stage.CLEARED:
        return _told(told) if is_told else Wait(f"node {name} to be released", since)
    running = [job for job in _jobs(record, name) if job["result"] == Outcome.RUNNING.value]
    if running:
        job = running[0]
        return Wait(f"Job {job['namespace']}/{job['name']} of rule {job['rule']} for node {name}", job["created"])
    return Wait(f"the next Job for node {name} to be created", since)


def _moments(record: Record, *names: str) -> list[str]:
    """Return the times of all completed actions on these nodes."""
    nodes = [record["nodes"][name] for name in names]
    fields = ("releasedAt", "upgradedAt", "cleanedAt", "droppedAt")
    jobs = [job["ended"] for name in names for job in _jobs(record, name)]
    return [moment for moment in (*(node.get(field) for node in nodes for field in fields), *jobs) if moment]
