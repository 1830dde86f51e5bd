"""Detect an upgrade: the control plane is at the desired version, and a worker is older (MUT-2, MUT-31, MUT-32).

A run with `pauseEarly` waits for the control plane in `label-nodes` instead of in this step (C26). The step emits
`run.restore_pending` if pools must be restored first. Claimed pools must be restored if no upgrade is available, or if
the MutexRunConfig no longer names them. So must pools with the selectors of a run whose record is lost.

In: `run.validated`. Out: `upgrade.detected`, or `run.restore_pending` while pools must be restored first.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutextargets get; machineconfigpools list; nodes list;
clusterversions get.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import ObjectReference
from functions.mutex.active_run import EVENT_TYPE_OF_DUE
from functions.mutex.event_objects import Replies, log_failure, read_object, report_refusals, write_status
from functions.steps import step
from kube.client.sync_client import SyncClient
from kube.mutex import lookup, run_record
from kube.mutex.due_events import DueEvent, find_due_event_of_validated_run
from kube.mutex.objects import RUN_KIND, is_deleting, list_references
from kube.mutex.validation import CHECKED_CONDITION, RunSnapshot, find_upgrade


@step(
    "detect-upgrade",
    consumes=(events.RUN_VALIDATED,),
    emits=(events.UPGRADE_DETECTED, events.RUN_RESTORE_PENDING),
    on_failure=log_failure,
)
@report_refusals(CHECKED_CONDITION, "CheckFailed")
def detect_upgrade(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Report the result of the version check in the MutexRunConfig's conditions; do nothing while its run is active."""
    run = read_object(event, client, RUN_KIND)
    if run is None or is_deleting(run) or run_record.is_active(run):
        return []
    api = client.api
    targets, pools_by_name, nodes_by_name, version = client.gather_all(
        lookup.read_targets(api, list_references(run, "mutexTargets")),
        lookup.list_pools_by_name(api),
        lookup.list_nodes_by_name(api),
        lookup.find_cluster_version(api),
    )
    snapshot = RunSnapshot({}, targets, pools_by_name, nodes_by_name, version)
    upgrade = find_upgrade(run, snapshot, run_record.get_finished_version(run))
    write_status(run, client, {}, upgrade.conditions)
    due_event = find_due_event_of_validated_run(run, snapshot, upgrade.version)
    if due_event is None:
        return []
    data = {"version": upgrade.version} if due_event is DueEvent.UPGRADE_DETECTED else {}
    reference = ObjectReference.from_object(run)
    return [events.build_event(EVENT_TYPE_OF_DUE[due_event], "detect-upgrade", reference, cause=event, data=data)]
