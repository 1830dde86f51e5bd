"""Run the Jobs of a node one after another: one per rule before its upgrade, and the cleanup Jobs after it.

Job names are reproducible, so that no Job is created twice. A Job's result is recorded before the next Job is created
(MUT-40, MUT-42). A Job that fails, or is deleted before its result is known, stops the run (MUT-46, MUT-47). A node
that no longer exists is dropped when its Job has ended with any result. If the run's config is not valid, the step only
records the Job's result, before the Job is deleted by its TTL.

In: `pools.edited`, `job.due`, `node.upgraded`, `node.cleaned`; an updated or deleted Job, by reference.
Out: `node.cleared`, `node.cleaned`, `run.completed`, `run.stopped`.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; nodes get, patch;
jobs get, create in node-upgrade-mutex-operator; events create in node-upgrade-mutex-operator.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import Ongoing, hinted, under_way
from functions.mutex.event_objects import Replies, announce, log_about, now, telling
from kube.client.api import JSON_PATCH, absent_ok
from kube.client.api_errors import Conflict, Denied, NotFound, Rejected
from kube.client.sync_client import Cluster
from kube.mutex import jobs, lookup, run_changes, run_record
from kube.mutex.jobs import CLEANUP, Outcome
from kube.mutex.node_labels import clear_patch
from kube.mutex.objects import Verdict
from kube.mutex.run_record import Due, Stage, job_entry
from kube.nodes import node_path
from kube.paths import Object
from kube.times import timestamp

CONSUMES = (
    *(events.POOLS_EDITED, events.JOB_DUE, events.NODE_UPGRADED, events.NODE_CLEANED),
    *(events.REFERENCE_UPDATED, events.REFERENCE_DELETED),
)
EMITS = (events.NODE_CLEARED, events.NODE_CLEANED, events.RUN_COMPLETED, events.RUN_STOPPED)
JOB_RUN = "JobRun"
STOPPED, OVERRIDDEN = "UpgradeStopped", "VariableOverridden"


@telling(JOB_RUN, "JobRunFailed")
def run_job(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Create the Job that the current node needs, record its result, or emit the event that continues the run."""
    found = under_way(hinted(event, "Job", cluster), cluster)
    if found is None:
        return []
    if found.stage in (Stage.CLEARED, Stage.DONE) and not found.is_halted:
        return found.answer_of_stage("run-job", event)
    if found.stage not in (Stage.JOBS, Stage.CLEANUP):
        return []
    due = run_record.next_job(found.record, found.node, found.has_cleanup)
    node = cluster.run(absent_ok(cluster.api.get(node_path(found.node))))
    if not run_record.is_there(node, found.record, found.node):
        return [] if found.is_halted else _gone(found, due, event, cluster)
    return _run(found, node, due, event, cluster)


def _gone(found: Ongoing, due: Due | None, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Drop a node that no longer exists, once its Job has ended; the next node's Job would run concurrently.

    A Job may have been created and not recorded, because the function was killed. It is recorded now, so that its end
    triggers this step.
    """
    if due is None:
        return _over(found, "droppedAt", event, cluster)
    is_recorded = bool(job_entry(found.record, found.node, due).get("name"))
    job = _recorded(found, due, cluster) if is_recorded else _unrecorded(found, due, cluster)
    if job is None or jobs.outcome(job) is not Outcome.RUNNING:
        return _over(found, "droppedAt", event, cluster)
    if not is_recorded:
        _record(found, due, job, cluster)
    return []


def _run(found: Ongoing, node: Object, due: Due | None, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Check the Job that is due, or create it; if none is due, continue the run. A halted run's Job is only checked."""
    if due and job_entry(found.record, found.node, due).get("name"):
        return _look(found, node, due, event, cluster)
    if found.is_halted:
        return []
    if due is None:
        is_cleared = found.stage is Stage.CLEARED
        return found.answer_of_stage("run-job", event) if is_cleared else _cleaned(found, node, event, cluster)
    if due.rule not in found.rules:
        return []  # the rule was deleted: ConfigValidated reports it, and the run continues once the rule exists
    return _create(found, node, due, event, cluster)


def _look(found: Ongoing, node: Object, due: Due, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Record the result of a Job that has ended; after a complete one, go on to the next."""
    name, job = job_entry(found.record, found.node, due)["name"], _recorded(found, due, cluster)
    outcome = jobs.outcome(job)
    if outcome is Outcome.RUNNING:
        return []
    if outcome is not Outcome.COMPLETE:
        return _stop(found, due, name, jobs.failure_of(job), event, cluster)
    log_about(f"Job {name} of rule {due.rule} is complete for node {found.node}", found.run)
    said = f"{found.at(found.node)}, {found.node}: the Jobs of rule {due.rule} are complete"
    change = _job_change(found.node, due, {"result": Outcome.COMPLETE.value, "endedAt": timestamp(now())})
    found = found.written(cluster, change, Verdict(JOB_RUN, True, "JobRunSucceeded", said))
    following = run_record.next_job(found.record, found.node, found.has_cleanup)
    return _run(found, node, following, event, cluster)


def _recorded(found: Ongoing, due: Due, cluster: Cluster) -> Object | None:
    """Return the current state of the recorded Job; None if none is recorded, it is gone, or its name was reused."""
    entry = job_entry(found.record, found.node, due)
    job = cluster.run(lookup.job(cluster.api, entry["namespace"], entry["name"])) if entry.get("name") else None
    return job if job is not None and job["metadata"]["uid"] == entry["uid"] else None


def _unrecorded(found: Ongoing, due: Due, cluster: Cluster) -> Object | None:
    """Return the Job that was created but not recorded for a node that no longer exists, or None."""
    if due.rule not in found.rules:
        return None  # the Job's name is derived from the rule
    uid = found.record["nodes"][found.node]["uid"]
    body = _body(found, {"metadata": {"name": found.node, "uid": uid}}, due)
    job = cluster.run(lookup.job(cluster.api, body["metadata"]["namespace"], body["metadata"]["name"]))
    return job if job is not None and jobs.is_of(job, body) else None


def _body(found: Ongoing, node: Object, due: Due) -> Object:
    """Build the due Job."""
    return jobs.job_of(found.rules[due.rule], due.kind, found.record["id"], node, _attempt(found, due))


def _attempt(found: Ongoing, due: Due) -> int:
    return int(job_entry(found.record, found.node, due).get("attempt") or 1)


def _create(found: Ongoing, node: Object, due: Due, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Create the Job, or find it already created, and record it after that: every recorded Job has existed.

    A rejected creation stops the run, because a user has to change something. A rejected read of an existing Job does
    not.
    """
    body = _body(found, node, due)
    where, name = body["metadata"]["namespace"], body["metadata"]["name"]
    job: Object | None
    try:
        job = cluster.create(jobs.jobs_path(where), body)
        log_about(f"Job {name} of rule {due.rule} is created for node {found.node}", found.run)
    except Conflict:
        job = cluster.run(lookup.job(cluster.api, where, name))
        if job is None:
            raise  # the conflict was with a quota update, or the Job's TTL has expired since
        if not jobs.is_of(job, body):
            said = f"a Job {name} that this run has not made is there: delete it, and retry"
            return _stop(found, due, "", said, event, cluster)
    except (Denied, Rejected, NotFound) as error:
        return _stop(found, due, "", error.message, event, cluster)
    _record(found, due, job, cluster)
    return []


def _record(found: Ongoing, due: Due, job: Object, cluster: Cluster) -> None:
    made = {field: job["metadata"][field] for field in ("namespace", "name", "uid")}
    known = {"attempt": _attempt(found, due), **made, "createdAt": job["metadata"]["creationTimestamp"]}
    found.written(cluster, _job_change(found.node, due, known))
    for variable in jobs.overridden(found.rules[due.rule]):
        announce(found.run, OVERRIDDEN, f"rule {due.rule} sets {variable}, which the run sets for its Jobs", cluster)


def _job_change(node: str, due: Due, change: Object) -> Object:
    return {"nodes": {node: {"jobs": {jobs.job_key(*due): change}}}}


def _stop(found: Ongoing, due: Due, job: str, why: str, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Stop the run until a user resumes it; the node keeps its labels, and the pools stay as they are."""
    reason = "CleanUpJobFailed" if due.kind == CLEANUP else "JobRunFailed"
    told = f"Job {job}" if job else "the Job"
    said = f"{found.at(found.node)}, {found.node}: {told} of rule {due.rule} did not complete: {why}"
    stopped = run_changes.failure(found.run, "run-job", said, node=found.node, job=job, now=now())
    found = found.written(cluster, stopped, Verdict(JOB_RUN, False, reason, said))
    log_about(said, found.run)
    announce(found.run, STOPPED, said, cluster)
    return found.answer(events.RUN_STOPPED, "run-job", event, node=found.node, error=said)


def _cleaned(found: Ongoing, node: Object, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Remove the run's labels from a node that is done; from then on the next node may be released."""
    if patch := clear_patch(node, found.record["id"]):
        cluster.patch(node_path(found.node), patch, JSON_PATCH)
    return _over(found, "cleanedAt", event, cluster)


def _over(found: Ongoing, field: str, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    name = found.node
    change = run_changes.over(found.record, name, field, now())
    log_about(f"node {name} is done: {field}", found.run)
    return found.written(cluster, change).answer(events.NODE_CLEANED, "run-job", event, node=name)
