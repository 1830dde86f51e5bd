"""Builds reports on upgrade runs: the steps, the nodes with their Jobs, and what a run waits for. Pure functions.

All data comes from the status of the MutexRunConfig, so a report requires no other permission.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kube.mutex import run_record
from kube.mutex.jobs import CLEANUP, MAIN, JobOutcome
from kube.mutex.objects import Resource, format_full_name, get_condition, get_status, is_deleting
from kube.mutex.run_record import (
    DueJob,
    RunRecord,
    Stage,
    get_job_entry,
    get_record,
    is_node_done,
    list_recorded_rules,
)
from kube.mutex.validation import (
    AVAILABLE_CONDITION,
    CHECKED_CONDITION,
    CONFIG_VALIDATED_CONDITION,
    READY_CONDITION,
    awaits_control_plane,
)
from kube.paths import Object

STEP_DONE, STEP_CURRENT, STEP_PENDING, STEP_HALTED = "done", "current", "pending", "stopped"
"""States of a step in a report on an upgrade run."""
STOPPED_STEPS = ("Failed", "Invalid")
"""Values of `status.step` for a run that an administrator must repair before it continues."""
RUN_NEW, RUN_ENDING = "New", "Ending"
"""Shown instead of `status.step`: for a MutexRunConfig without a status, and for one that is being deleted."""
RUN_WAITING, RUN_FINISHED = "Waiting", "Finished"
"""Values of `status.step`: the MutexRunConfig has no active run; its last run has upgraded all nodes."""
NODE_WAITING, NODE_UPGRADED, NODE_GONE = "Waiting", "Done", "Gone"
"""States of a node: not yet started, completed, or dropped from the run because the node was deleted."""
PAUSED_CONDITION, UPGRADE_CONDITION = "TargetPoolsPaused", "NodeUpgrade"


class Wait(NamedTuple):
    """What a run waits for, the time when the wait began, and the remedy if an administrator must act."""

    what: str
    since: str
    remedy: str = ""


def get_step_label(run: Resource) -> str:
    """Return the run's current step as one word.

    After a finished run, `status.step` changes back to "Waiting" at the next check of the MutexRunConfig. The function
    returns "Finished" instead until the next upgrade is found.
    """
    if is_deleting(run):
        return RUN_ENDING
    step = str(get_status(run).get("step") or RUN_NEW)
    return RUN_FINISHED if step == RUN_WAITING and _is_last_run_finished(run) else step


def _is_last_run_finished(run: Resource) -> bool:
    """Return whether the last run has upgraded all nodes, and no condition reports another upgrade since."""
    if not run_record.get_finished_version(run) or get_condition(run, AVAILABLE_CONDITION).get("status") == "True":
        return False
    return not any(get_condition(run, kind).get("status") == "False" for kind in (CHECKED_CONDITION, READY_CONDITION))


def build_report(run: Resource) -> Object:
    """Return the complete report on a run, which is also the command's JSON output."""
    record, metadata = get_record(run), run["metadata"]
    wait = find_wait(run)
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "step": get_step_label(run),
        "version": record.get("desired") or "",
        "progress": get_status(run).get("progress") or "",
        "job": get_status(run).get("job") or "",
        "created": metadata["creationTimestamp"],
        "begun": record.get("startedAt") or "",
        "finished": record.get("finishedAt") or "",
        "waits": wait._asdict() if wait else None,
        "steps": build_steps(run),
        "nodes": [_build_node_report(run, name) for name in record.get("order") or []],
        "conditions": [dict(condition) for condition in get_status(run).get("conditions") or []],
    }


def build_steps(run: Resource) -> list[Object]:
    """Return the steps of a run in order, each with its state and the time of its completion."""
    record, valid = get_record(run), get_condition(run, CONFIG_VALIDATED_CONDITION)
    nodes = (record.get("nodes") or {}).values()
    done_times = [str(node.get("cleanedAt") or node["droppedAt"]) for node in nodes if is_node_done(node)]
    node_counts = f" ({len(done_times)} of {len(nodes)})" if nodes else ""
    completion_times = {
        "Config valid": valid.get("lastTransitionTime") if valid.get("status") == "True" else None,
        "Upgrade found, pools claimed": record.get("startedAt"),
        "Pools paused": record.get("pausedAt"),
        "Nodes labelled": record.get("labelledAt"),
        "Pools edited": record.get("editedAt"),
        f"Nodes upgraded{node_counts}": max(done_times) if nodes and len(done_times) == len(nodes) else None,
        "Pools restored": record.get("finishedAt"),
    }
    states = {name: STEP_DONE if time else STEP_PENDING for name, time in completion_times.items()}
    if current := next((name for name, time in completion_times.items() if not time), ""):
        has_stopped = record.get("failure") or valid.get("status") == "False"
        states[current] = STEP_HALTED if has_stopped else STEP_CURRENT
    return [{"step": name, "state": states[name], "at": time or ""} for name, time in completion_times.items()]


def _build_node_report(run: Resource, name: str) -> Object:
    record = get_record(run)
    node = record["nodes"][name]
    is_current = run_record.is_active(run) and name == run_record.get_current_node(record)
    if is_current and record.get("editedAt"):  # Until the run has edited the pools, all nodes wait.
        state = run_record.compute_stage(run).value
    else:
        state = NODE_UPGRADED if node.get("cleanedAt") else NODE_GONE if node.get("droppedAt") else NODE_WAITING
    jobs = list(_iter_job_reports(record, name))
    times = [node.get(field) for field in ("droppedAt", "cleanedAt", "upgradedAt", "releasedAt")]
    since = next(filter(None, times), jobs[0]["created"] if jobs else record.get("startedAt"))
    return {"node": name, "state": state, "since": since or "", "jobs": jobs}


def _iter_job_reports(record: RunRecord, node: str) -> Iterator[Object]:
    """Yield reports on the Jobs that were created for a node, in the order of their execution."""
    for kind in (MAIN, CLEANUP):
        for rule in list_recorded_rules(record):
            entry = get_job_entry(record, node, DueJob(kind, rule))
            if entry.get("name"):
                yield _build_job_report(record, kind, str(rule), entry)


def _build_job_report(record: RunRecord, kind: str, rule: str, entry: Mapping[str, Any]) -> Object:
    failed = entry["name"] == (record.get("failure") or {}).get("job")
    outcome = JobOutcome.FAILED if failed else JobOutcome.RUNNING
    namespace = str(entry.get("namespace") or "")
    namespace_flag = f"-n {namespace} " if namespace else ""
    return {
        "rule": rule,
        "kind": kind,
        "namespace": namespace,
        "name": entry["name"],
        "attempt": int(entry.get("attempt") or 1),
        "result": entry.get("result") or outcome.value,
        "created": entry.get("createdAt") or "",
        "ended": entry.get("endedAt") or "",
        "logs": f"kubectl logs {namespace_flag}job/{entry['name']}",
    }


def find_wait(run: Resource) -> Wait | None:
    """Return what the run waits for now, or None if no condition states that."""
    if is_deleting(run):
        return Wait("the run's pools and nodes to be restored", str(run["metadata"]["deletionTimestamp"]))
    if not get_status(run):
        return Wait("the function check-run", run["metadata"]["creationTimestamp"], "check that the functions run")
    record, config_validated = get_record(run), get_condition(run, CONFIG_VALIDATED_CONDITION)
    if failure := record.get("failure"):
        remedy = f"fix the cause, then run kubectl maintenance mutex retry {format_full_name(run)}"
        return Wait(str(failure.get("message") or ""), str(failure.get("at") or ""), remedy)
    if config_validated.get("status") == "False":
        return _build_condition_wait(config_validated, "fix the objects that this message names")
    if run_record.is_active(run):
        return _find_stage_wait(run, run_record.compute_stage(run))
    return _build_finished_wait(run) if get_step_label(run) == RUN_FINISHED else _find_idle_wait(run)


def _build_finished_wait(run: Resource) -> Wait:
    metadata = run["metadata"]
    what = f"the next desired version after {run_record.get_finished_version(run)}, which starts another run"
    remedy = f"to prevent this, run kubectl delete mutexrunconfig -n {metadata['namespace']} {metadata['name']}"
    return Wait(what, str(get_record(run)["finishedAt"]), remedy)


def _build_condition_wait(condition: Mapping[str, Any], remedy: str = "") -> Wait:
    return Wait(str(condition.get("message") or ""), str(condition.get("lastTransitionTime") or ""), remedy)


def _find_idle_wait(run: Resource) -> Wait | None:
    """Return what a MutexRunConfig without an active run waits for: other runs, or an upgrade."""
    paused, available = get_condition(run, PAUSED_CONDITION), get_condition(run, AVAILABLE_CONDITION)
    if available.get("status") == "True":
        return _build_condition_wait(paused if paused.get("status") == "False" else available)
    conditions = (get_condition(run, kind) for kind in (CHECKED_CONDITION, READY_CONDITION))
    wait = next(
        (_build_condition_wait(condition) for condition in conditions if condition.get("status") == "False"), None
    )
    if wait or available.get("status") != "False":
        return wait
    unavailable = _build_condition_wait(available)
    return unavailable._replace(what=f"an upgrade: {unavailable.what}")


def _find_stage_wait(run: Resource, current_stage: Stage) -> Wait:
    record, paused = get_record(run), get_condition(run, PAUSED_CONDITION)
    if current_stage is Stage.CLAIMED and paused.get("status") == "False":
        return _build_condition_wait(paused)
    if awaits_control_plane(run) and get_condition(run, READY_CONDITION):
        return _build_condition_wait(get_condition(run, READY_CONDITION))
    waits_before_nodes = {
        Stage.CLAIMED: Wait("the run's pools to be paused", str(record.get("startedAt") or "")),
        Stage.PAUSED: Wait("the run's nodes to be labelled", str(record.get("pausedAt"))),
        Stage.LABELLED: Wait("the run's pools to be edited", str(record.get("labelledAt"))),
    }
    return waits_before_nodes.get(current_stage) or _find_node_wait(run, current_stage)


def _find_node_wait(run: Resource, current_stage: Stage) -> Wait:
    record = get_record(run)
    name = run_record.get_current_node(record)
    if not name:
        return Wait("the run's pools to be restored", max(_list_completion_times(record, *record["order"]), default=""))
    upgrade, node = get_condition(run, UPGRADE_CONDITION), record["nodes"][name]
    has_reason = upgrade.get("status") == "False" and name in str(upgrade.get("message"))
    if current_stage is Stage.RELEASED:
        what = upgrade["message"] if has_reason else f"node {name} to be upgraded to version {record['desired']}"
        return Wait(str(what), str(node["releasedAt"]))
    since = max(_list_completion_times(record, name), default=str(record.get("editedAt") or ""))
    if current_stage is Stage.PREJOBS_DONE:
        return _build_condition_wait(upgrade) if has_reason else Wait(f"node {name} to be released", since)
    running = [job for job in _iter_job_reports(record, name) if job["result"] == JobOutcome.RUNNING.value]
    if running:
        job = running[0]
        return Wait(f"Job {job['namespace']}/{job['name']} of rule {job['rule']} for node {name}", job["created"])
    return Wait(f"the next Job for node {name} to be created", since)


def _list_completion_times(record: RunRecord, *node_names: str) -> list[str]:
    """Return the times of all completed Jobs and steps of these nodes."""
    nodes = [record["nodes"][name] for name in node_names]
    fields = ("releasedAt", "upgradedAt", "cleanedAt", "droppedAt")
    jobs = [job["ended"] for name in node_names for job in _iter_job_reports(record, name)]
    return [time for time in (*(node.get(field) for node in nodes for field in fields), *jobs) if time]
