"""Detect an upgrade: the control plane is at the desired version, and a worker is older (MUT-2, MUT-31, MUT-32).

A run with `pauseEarly` does not wait for the control plane in this step, but in `label-nodes` (C26). If claimed pools
must be restored first, the step emits `run.restore_pending`. Claimed pools must be restored if no upgrade is available,
or if the run config no longer names them. Pools with the selectors of a run whose record is lost must be restored as
well.

In: `run.validated`. Out: `upgrade.detected`, or `run.restore_pending` while pools must be restored first.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutextargets get; machineconfigpools list; nodes list;
clusterversions get.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import ObjectReference
from functions.mutex.event_objects import Replies, log_failure, read_object, report_refusals, write_status
from functions.steps import step
from kube.client.sync_client import SyncClient
from kube.mutex import claims, lookup, run_record
from kube.mutex.objects import RUN_KIND, has_finalizer, is_deleting, list_references
from kube.mutex.validation import CHECKED_CONDITION, RunSnapshot, find_upgrade


@step(
    "detect-upgrade",
    consumes=(events.RUN_VALIDATED,),
    emits=(events.UPGRADE_DETECTED, events.RUN_RESTORE_PENDING),
    on_failure=log_failure,
)
@report_refusals(CHECKED_CONDITION, "CheckFailed")
def detect_upgrade(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Write the result of the version check to the conditions and change nothing else; ignore an active run."""
    run = read_object(event, client, RUN_KIND)
    if run is None or is_deleting(run) or run_record.is_active(run):
        return []
    api = client.api
    targets, pools, nodes, version = client.gather_all(
        lookup.read_targets(api, list_references(run, "mutexTargets")),
        lookup.list_pools_by_name(api),
        lookup.list_nodes_by_name(api),
        lookup.find_cluster_version(api),
    )
    snapshot = RunSnapshot({}, targets, pools, nodes, version)
    upgrade = find_upgrade(run, snapshot, run_record.get_finished_version(run))
    write_status(run, client, {}, upgrade.conditions)
    reference, all_pools = ObjectReference.from_object(run), pools.values()
    if upgrade.version and not claims.find_leftover_pools(
        run, claims.list_pools_to_claim(run, snapshot.list_pool_names(run)), all_pools
    ):
        data = {"version": upgrade.version}
        return [events.build_event(events.UPGRADE_DETECTED, "detect-upgrade", reference, cause=event, data=data)]
    if has_finalizer(run) or claims.select_claimed_pools(run["metadata"]["uid"], all_pools):
        return [events.build_event(events.RUN_RESTORE_PENDING, "detect-upgrade", reference, cause=event)]
    return []
