"""Detect an upgrade: the control plane is at the desired version, and a worker is older (MUT-2, MUT-31, MUT-32).

A run with `pauseEarly` does not wait for the control plane in this step, but in `label-nodes` (C26). If claimed pools
must be restored first, the step emits `run.ended`. That is so if no upgrade is available, if the run config no longer
names the pools, or if their selectors belong to a lost run.

In: `run.validated`. Out: `upgrade.found`, or `run.ended` while pools must be restored first.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutextargets get; machineconfigpools list; nodes list;
clusterversions get.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from functions.mutex.event_objects import Replies, read, telling, write_status
from kube.client.sync_client import Cluster
from kube.mutex import claims, lookup, run_record
from kube.mutex.objects import RUN, has_finalizer, is_deleting, references
from kube.mutex.validation import CHECKED, detection
from kube.mutex.run_snapshot import World

CONSUMES = (events.RUN_VALIDATED,)
EMITS = (events.UPGRADE_FOUND, events.RUN_ENDED)


@telling(CHECKED, "CheckFailed")
def detect_upgrade(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Write the result of the version check to the conditions, and nothing else; ignore an active run."""
    run = read(event, cluster, RUN)
    if run is None or is_deleting(run) or run_record.is_active(run):
        return []
    api = cluster.api
    targets, pools, nodes, version = cluster.together(
        lookup.named_targets(api, references(run, "mutexTargets")),
        lookup.pools(api),
        lookup.nodes(api),
        lookup.cluster_version(api),
    )
    world = World({}, targets, pools, nodes, version)
    found = detection(run, world, run_record.done_version(run))
    write_status(run, cluster, {}, found.verdicts)
    about, known = Reference.of(run), pools.values()
    if found.version and not claims.leftovers(run, claims.wanted_names(run, world.pool_names(run)), known):
        data = {"version": found.version}
        return [events.event(events.UPGRADE_FOUND, "detect-upgrade", about, cause=event, data=data)]
    if has_finalizer(run) or claims.claimed(run["metadata"]["uid"], known):
        return [events.event(events.RUN_ENDED, "detect-upgrade", about, cause=event)]
    return []
