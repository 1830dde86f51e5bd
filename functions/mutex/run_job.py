"""Run the Jobs of a node one after another: one per rule before its upgrade, and the cleanup Jobs after it.

Job names are deterministic, so that no Job is created twice. A Job's result is recorded before the next Job is created
(MUT-40, MUT-42). If a Job fails, or is deleted before its result is known, the step halts the run (MUT-46, MUT-47). A
node that no longer exists is dropped after its Job has finished, whatever the result. If the MutexRunConfig is not
valid, the step only records the Job's result, so that the result is known after the Job's TTL has expired.

In: `pools.edited`, `job.due`, `node.upgraded`, `node.done`; an updated or deleted Job, by reference.
Out: `node.prejobs_done`, `node.done`, `run.nodes_done`, `run.halted`.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; nodes get, patch;
jobs get, create in node-upgrade-mutex-operator; events create in node-upgrade-mutex-operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import ActiveRun, find_run_of_event, finish_node, halt_run, load_active_run
from functions.mutex.event_objects import Replies, log_about, log_failure, record_warning, report_refusals, utc_now
from functions.steps import step
from kube.client.api import JSON_PATCH, get_or_none
from kube.client.api_errors import Conflict, Denied, NotFound, Rejected
from kube.client.sync_client import SyncClient
from kube.mutex import jobs, lookup, run_record
from kube.mutex.jobs import CLEANUP, JobOutcome
from kube.mutex.nodes import build_label_removal_patch
from kube.mutex.objects import Condition
from kube.mutex.run_record import DueJob, Stage
from kube.nodes import build_node_path
from kube.paths import Object
from kube.times import format_time

JOB_RUN_CONDITION = "JobRun"
OVERRIDDEN_REASON = "VariableOverridden"


@step(
    "run-job",
    consumes=(
        *(events.POOLS_EDITED, events.JOB_DUE, events.NODE_UPGRADED, events.NODE_DONE),
        *(events.REFERENCE_UPDATED, events.REFERENCE_DELETED),
    ),
    emits=(events.NODE_PREJOBS_DONE, events.NODE_DONE, events.RUN_NODES_DONE, events.RUN_HALTED),
    on_failure=log_failure,
)
@report_refusals(JOB_RUN_CONDITION, "JobRunFailed")
def run_job(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Create the current node's next Job, record the Job's result, or emit the event that continues the run."""
    active_run = load_active_run(find_run_of_event(event, "Job", client), client)
    if active_run is None:
        return []
    if active_run.stage in (Stage.PREJOBS_DONE, Stage.NODES_DONE) and not active_run.is_halted:
        return active_run.build_stage_reply("run-job", event)
    if active_run.stage not in (Stage.JOBS, Stage.CLEANUP):
        return []
    name = active_run.current_node
    node = client.run(get_or_none(client.api.get(build_node_path(name))))
    if run_record.is_recorded_node(node, active_run.record, name):
        return _continue_node(active_run, node, event, client)
    return [] if active_run.is_halted else _drop_missing_node(active_run, event, client)


def _continue_node(active_run: ActiveRun, node: Object, event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Check the due Job if it was created before, or create it; without a due Job, finish the node or continue the run.

    In a halted run, the function only checks an existing Job.
    """
    due_job = active_run.due_job
    if due_job and _get_job_entry(active_run, due_job).get("name"):
        return _check_job(active_run, due_job, node, event, client)
    if active_run.is_halted:
        return []
    if due_job is None and active_run.stage is Stage.PREJOBS_DONE:
        return active_run.build_stage_reply("run-job", event)
    if due_job is None:
        if patch := build_label_removal_patch(node, active_run.record["id"]):
            # The next node may be released only after the run's labels are removed from this node.
            client.patch(build_node_path(active_run.current_node), patch, JSON_PATCH)
        return finish_node(active_run, "cleanedAt", "run-job", event, client)
    if due_job.rule not in active_run.rules:
        return []  # The rule was deleted; the condition ConfigValidated reports that until the rule is created again.
    return _create_job(active_run, due_job, node, event, client)


def _check_job(
    active_run: ActiveRun, due_job: DueJob, node: Object, event: BaseCloudEvent, client: SyncClient
) -> Replies:
    """Record the result of a finished Job; if the Job has completed, continue with the next Job, else halt the run."""
    name, job = _get_job_entry(active_run, due_job)["name"], _read_recorded_job(active_run, due_job, client)
    outcome = jobs.get_job_outcome(job)
    if outcome is JobOutcome.RUNNING:
        return []
    if outcome is not JobOutcome.COMPLETE:
        return _halt_run_after_job(active_run, due_job, name, jobs.format_job_failure(job), event, client)
    log_about(f'Job "{name}" of rule {due_job.rule} is complete for node "{active_run.current_node}"', active_run.run)
    message = f"{active_run.position}: the Jobs of rule {due_job.rule} are complete"
    result = {"result": JobOutcome.COMPLETE.value, "endedAt": format_time(utc_now())}
    condition = Condition(JOB_RUN_CONDITION, True, "JobRunSucceeded", message)
    active_run = active_run.write_record(client, _build_job_change(active_run, due_job, result), condition)
    return _continue_node(active_run, node, event, client)


def _create_job(
    active_run: ActiveRun, due_job: DueJob, node: Object, event: BaseCloudEvent, client: SyncClient
) -> Replies:
    """Create the Job, or find it if it already exists, and then record it, so that every recorded Job has existed.

    If the API server rejects the creation, the function halts the run, because a user has to fix the cause.
    """
    body = _build_job(active_run, due_job, node)
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    job: Object | None
    try:
        job = client.create(jobs.build_jobs_path(namespace), body)
        log_about(f'created Job "{name}" of rule {due_job.rule} for node "{active_run.current_node}"', active_run.run)
    except Conflict:
        job = client.run(lookup.get_job_or_none(client.api, namespace, name))
        if job is None:
            raise  # A concurrent ResourceQuota update caused the conflict, or the Job's TTL has just expired.
        if not jobs.is_same_job(job, body):
            message = f'Job "{name}" already exists and does not belong to this run: delete it, and retry'
            return _halt_run_after_job(active_run, due_job, "", message, event, client)
    except Denied as error:
        message = jobs.format_permission_error(error.message, active_run.rules[due_job.rule])
        return _halt_run_after_job(active_run, due_job, "", message, event, client)
    except (Rejected, NotFound) as error:
        return _halt_run_after_job(active_run, due_job, "", error.message, event, client)
    _record_job(active_run, due_job, job, client)
    return []


def _drop_missing_node(active_run: ActiveRun, event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Drop a node that no longer exists after its Job has finished, so that no two nodes' Jobs run concurrently.

    If the step was killed after it had created the Job, the record does not contain the Job. The function then records
    a running Job, so that the Job's end triggers the step again.
    """
    due_job = active_run.due_job
    is_recorded = due_job is not None and bool(_get_job_entry(active_run, due_job).get("name"))
    read_job = _read_recorded_job if is_recorded else _read_unrecorded_job
    job = read_job(active_run, due_job, client) if due_job else None
    if due_job is None or job is None or jobs.get_job_outcome(job) is not JobOutcome.RUNNING:
        return finish_node(active_run, "droppedAt", "run-job", event, client)
    if not is_recorded:
        _record_job(active_run, due_job, job, client)
    return []


def _read_recorded_job(active_run: ActiveRun, due_job: DueJob, client: SyncClient) -> Object | None:
    """Read the recorded Job; return None if it was deleted, or recreated with the same name."""
    entry = _get_job_entry(active_run, due_job)
    job = client.run(lookup.get_job_or_none(client.api, entry["namespace"], entry["name"]))
    return job if job is not None and job["metadata"]["uid"] == entry["uid"] else None


def _read_unrecorded_job(active_run: ActiveRun, due_job: DueJob, client: SyncClient) -> Object | None:
    """Return the Job that was created for a missing node but not recorded, or None if there is no such Job."""
    if due_job.rule not in active_run.rules:
        return None  # Without the rule, the Job's name cannot be computed.
    node = {"metadata": {"name": active_run.current_node, "uid": active_run.node_record["uid"]}}
    body = _build_job(active_run, due_job, node)
    job = client.run(lookup.get_job_or_none(client.api, body["metadata"]["namespace"], body["metadata"]["name"]))
    return job if job is not None and jobs.is_same_job(job, body) else None


def _get_job_entry(active_run: ActiveRun, due_job: DueJob) -> Mapping[str, Any]:
    """Return the Job's entry in the run's record, or {} before the Job is created."""
    return run_record.get_job_entry(active_run.record, active_run.current_node, due_job)


def _get_attempt_number(active_run: ActiveRun, due_job: DueJob) -> int:
    return int(_get_job_entry(active_run, due_job).get("attempt") or 1)


def _build_job(active_run: ActiveRun, due_job: DueJob, node: Object) -> Object:
    """Build the manifest of the node's due Job."""
    rule, attempt = active_run.rules[due_job.rule], _get_attempt_number(active_run, due_job)
    return jobs.build_job(rule, due_job.job_kind, active_run.record["id"], node, attempt)


def _record_job(active_run: ActiveRun, due_job: DueJob, job: Object, client: SyncClient) -> None:
    entry = {
        "attempt": _get_attempt_number(active_run, due_job),
        **{field: job["metadata"][field] for field in ("namespace", "name", "uid")},
        "createdAt": job["metadata"]["creationTimestamp"],
    }
    active_run.write_record(client, _build_job_change(active_run, due_job, entry))
    for variable in jobs.find_overridden_variables(active_run.rules[due_job.rule]):
        message = f"rule {due_job.rule} sets {variable}, but the run overrides this variable in its Jobs"
        record_warning(active_run.run, OVERRIDDEN_REASON, message, client)


def _build_job_change(active_run: ActiveRun, due_job: DueJob, entry: Object) -> Object:
    return {"nodes": {active_run.current_node: {"jobs": {jobs.format_job_key(*due_job): entry}}}}


def _halt_run_after_job(
    active_run: ActiveRun, due_job: DueJob, job_name: str, error: str, event: BaseCloudEvent, client: SyncClient
) -> Replies:
    """Halt the run because a Job failed, was deleted or could not be created."""
    reason = "CleanUpJobFailed" if due_job.job_kind == CLEANUP else "JobRunFailed"
    job = f'Job "{job_name}"' if job_name else "the Job"
    message = f"{active_run.position}: {job} of rule {due_job.rule} did not complete: {error}"
    condition = Condition(JOB_RUN_CONDITION, False, reason, message)
    return halt_run(active_run, "run-job", condition, event, client, job_name=job_name)
