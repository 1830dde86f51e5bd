"""Check that all objects named by a MutexRunConfig exist and are valid, then continue its run (MUT-30, MUT-3, MUT-48).

In: an added or updated MutexRunConfig, `run.check_pending`.
Out: `run.validated`, `run.restore_pending`, or the event that an active run waits for: `pools.claimed`, `pools.paused`,
`nodes.labelled`, `job.due`, `node.prejobs_done`, `node.released`, `run.nodes_done`.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutexrules get; mutextargets get; machineconfigpools list;
nodes list.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import ObjectReference
from eventing.http_binding import BadEvent
from functions.event_data import require_data
from functions.mutex.active_run import EVENT_TYPE_OF_STAGE, ActiveRun, load_unhalted_run
from functions.mutex.event_objects import (
    Replies,
    is_about_kind,
    log_failure,
    read_object,
    report_refusals,
    utc_now,
    write_status,
)
from functions.steps import step
from kube.client.sync_client import SyncClient
from kube.mutex import due_events, lookup, run_record
from kube.mutex.objects import RUN_KIND, has_finalizer, is_deleting, list_references
from kube.mutex.validation import (
    CONFIG_VALIDATED_CONDITION,
    RunSnapshot,
    build_config_condition,
    is_config_valid,
    list_needed_rules,
)
from kube.paths import Object


@step(
    "check-run",
    consumes=(events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RUN_CHECK_PENDING),
    emits=(events.RUN_VALIDATED, events.RUN_RESTORE_PENDING, *sorted(set(EVENT_TYPE_OF_STAGE.values()))),
    on_failure=log_failure,
)
@report_refusals(CONFIG_VALIDATED_CONDITION, "FetchFailed")
def check_run(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Validate the MutexRunConfig, and return the event that continues its run.

    The step ignores update events that status writes cause.
    """
    if not is_about_kind(event, RUN_KIND) or (
        event.get_type() == events.RESOURCE_UPDATED and not _is_user_change(event)
    ):
        return []
    run = read_object(event, client, RUN_KIND)
    if run is None:
        return []
    if is_deleting(run):
        restore_pending = events.build_event(
            events.RUN_RESTORE_PENDING, "check-run", ObjectReference.from_object(run), cause=event
        )
        return [restore_pending] if has_finalizer(run) else []
    condition = build_config_condition(run, _read_snapshot(run, client))
    changes = {"observedGeneration": run["metadata"]["generation"]}
    if not run_record.is_active(run):
        changes["step"] = "Waiting" if condition.holds else "Invalid"
    elif condition.holds and not is_config_valid(run):
        changes |= run_record.build_time_extension(run, utc_now())
    run = write_status(run, client, changes, [condition]) or run
    return _build_next_event(run, event, client) if condition.holds else []


def _is_user_change(event: BaseCloudEvent) -> bool:
    """Return whether a user caused the event: by changing the spec or the retry annotation, or by a deletion."""
    run = require_data(event)
    try:
        return is_deleting(run) or due_events.has_unprocessed_change(run)
    except (KeyError, TypeError, AttributeError):
        raise BadEvent("the MutexRunConfig in data is malformed") from None


def _read_snapshot(run: Object, client: SyncClient) -> RunSnapshot:
    api = client.api
    rules, targets, pools, nodes = client.gather_all(
        lookup.read_rules(api, list_needed_rules(run)),
        lookup.read_targets(api, list_references(run, "mutexTargets")),
        lookup.list_pools_by_name(api),
        lookup.list_nodes_by_name(api),
    )
    return RunSnapshot(rules, targets, pools, nodes)


def _build_next_event(run: Object, event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Return `run.validated` if no run is active, else the event that the active run waits for.

    If a user has resumed a halted run, the function first clears the failure in the run's record.
    """
    if not run_record.is_active(run):
        return [events.build_event(events.RUN_VALIDATED, "check-run", ObjectReference.from_object(run), cause=event)]
    if run_record.is_resume_requested(run):
        run = _resume_run(run, client)
    active_run = load_unhalted_run(run, client)
    return active_run.build_stage_reply("check-run", event) if active_run else []


def _resume_run(run: Object, client: SyncClient) -> Object:
    record = run_record.get_record(run)
    active_run = ActiveRun(run, client.run(lookup.read_rules(client.api, run_record.list_recorded_rules(record))))
    return active_run.write_record(client, run_record.build_resume_change(run, active_run.has_cleanup, utc_now())).run
