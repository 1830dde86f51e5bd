"""Resync runs: emit exactly the events that rules, targets and runs still wait for (X-3, MUT-22, MUT-30).

On each PingSource event (a tick), the step checks all objects. It also emits `run.restore_pending` for each node with
the label of a run that no longer exists, unless the node must keep the label. Any other event reports a changed pool,
ClusterVersion, rule or target. For such an event, the step emits only the events of runs that wait for such a change,
or whose changes another client has undone. Ticks also resume interrupted work, and handle pools that another client
keeps changing.

In: a PingSource tick; `rule.checked`, `target.checked`, `run.restored`; an updated MachineConfigPool or ClusterVersion,
by reference.
Out: `rule.check_pending`, `target.check_pending`, `run.check_pending`, `run.validated`, `upgrade.detected`,
`pools.claimed`, `pools.paused`, `nodes.labelled`, `job.due`, `node.prejobs_done`, `node.released`, `run.nodes_done`,
`run.restore_pending`.
Touches: mutexrunconfigs list; mutexrules list; mutextargets list; machineconfigpools list; nodes list;
clusterversions get; jobs list; nodemaintenances list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import ObjectReference
from functions.mutex.active_run import EVENT_TYPE_OF_DUE, parse_upgrade_timeout
from functions.mutex.event_objects import log_about, log_failure, utc_now
from functions.round_robin import RoundRobin
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.client.sync_client import SyncClient
from kube.mutex import claims, due_events, lookup, run_record
from kube.mutex.due_events import DueEvent, ObservedRun
from kube.mutex.nodes import find_orphaned_nodes, get_run_id
from kube.mutex.objects import API_VERSION, DEFAULT_NAMESPACE, RUN_KIND, Resource
from kube.mutex.validation import RunSnapshot
from kube.paths import MALFORMED_OBJECT_ERRORS, Object

HINT_KINDS = (None, "MachineConfigPool", "ClusterVersion")
MAX_ORPHANS_PER_TICK = 25
"""Maximum number of `run.restore_pending` events for orphaned nodes per pass; each of them invokes `restore-pools`."""
ORPHAN_ROTATION = RoundRobin()
UNKNOWN_UID = "unknown"
"""Placeholder for the uid of the MutexRunConfig if the node's label does not contain it."""


@step(
    "resync-runs",
    consumes=(
        *(events.TICK, events.RULE_CHECKED, events.TARGET_CHECKED, events.RUN_RESTORED),
        events.REFERENCE_UPDATED,
    ),
    emits=tuple(EVENT_TYPE_OF_DUE.values()),
    on_failure=log_failure,
    # PingSource events (ticks) coalesce only with each other, because their passes check more objects.
    coalescing=HintPolicy(lambda hint: WorkKey("all runs (tick)" if hint.get_type() == events.TICK else "all runs")),
)
def resync_runs(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Return the events that rules, targets, runs and orphaned nodes wait for.

    In a cluster without such objects, the step sends only four API requests.
    """
    if event.get_extension("kind") not in HINT_KINDS:
        return []
    is_tick = event.get_type() == events.TICK
    objects = _read_objects(client, is_tick=is_tick)
    replies = [
        events.build_event(EVENT_TYPE_OF_DUE[due], "resync-runs", ObjectReference.from_object(obj), cause=event)
        for obj, due in _find_due_events(objects, is_tick=is_tick)
    ]
    orphans = _select_orphaned_nodes(objects, client)
    return [*replies, *(_build_orphan_event(node, objects.runs, event) for node in orphans)]


class ResyncObjects(NamedTuple):
    """The objects that the step reads; it reads `rules` and `labelled_nodes` only for a PingSource event."""

    runs: list[Object]
    rules: list[Object]
    targets: list[Object]
    labelled_nodes: list[Object]
    snapshot: RunSnapshot


def _read_objects(client: SyncClient, *, is_tick: bool) -> ResyncObjects:
    api = client.api
    runs, rules, targets = client.gather_all(lookup.list_runs(api), lookup.list_rules(api), lookup.list_targets(api))
    labelled_nodes = client.run(lookup.list_labelled_nodes(api)) if is_tick else []
    active_runs = [run for run in runs if is_tick and run_record.is_active_undeleted(run)]
    has_snapshot = bool(runs or targets)
    snapshot = client.run(lookup.read_snapshot(api, rules, targets, active_runs)) if has_snapshot else RunSnapshot()
    return ResyncObjects(runs, rules if is_tick else [], targets, labelled_nodes, snapshot)


def _find_due_events(objects: ResyncObjects, *, is_tick: bool) -> Iterator[tuple[Object, DueEvent]]:
    """Yield a pair of object and due event for each event that an object waits for; skip malformed objects."""
    now, timeout_seconds = utc_now(), parse_upgrade_timeout(os.environ)

    def find_due_events_of_run(run: Object) -> list[DueEvent]:
        observed = ObservedRun(run, objects.snapshot, now, timeout_seconds)
        find = due_events.find_due_events_of_run if is_tick else due_events.find_due_events_on_hint
        return find(observed, objects.runs)

    checks: tuple[tuple[list[Object], Callable[[Object], list[DueEvent]]], ...] = (
        (objects.rules, lambda rule: due_events.find_due_events_of_rule(rule, now)),
        (objects.targets, lambda target: due_events.find_due_events_of_target(target, objects.snapshot)),
        (objects.runs, find_due_events_of_run),
    )
    for items, find_due_events in checks:
        for obj in items:
            try:
                dues = find_due_events(obj)
            except MALFORMED_OBJECT_ERRORS as error:
                log_about("resync-runs skipped this object", obj, error=repr(error))
                continue
            yield from ((obj, due) for due in dues)


def _select_orphaned_nodes(objects: ResyncObjects, client: SyncClient) -> list[Object]:
    """Return at most `MAX_ORPHANS_PER_TICK` orphaned nodes, by round robin.

    The list is empty if an active run's canary would select the nodes as soon as their labels are removed.
    """
    orphans = find_orphaned_nodes(objects.labelled_nodes, run_record.list_active_run_ids(objects.runs))
    if not orphans:
        return []
    pools = list(client.run(lookup.list_pools_by_name(client.api)).values())
    orphaned_pools = claims.find_orphaned_pools(pools, objects.runs)
    return (
        ORPHAN_ROTATION.take(orphans, MAX_ORPHANS_PER_TICK)
        if orphaned_pools or not claims.has_active_canary(pools, orphaned_pools)
        else []
    )


def _build_orphan_event(node: Resource, runs: list[Object], cause: BaseCloudEvent) -> BaseCloudEvent:
    """Build `run.restore_pending` for an orphaned node.

    If the MutexRunConfig no longer exists, the reference contains its uid from the node's label as uid and name.
    """
    name, uid = node["metadata"]["name"], run_record.parse_run_config_uid(get_run_id(node)) or UNKNOWN_UID
    existing = next((ObjectReference.from_object(run) for run in runs if run["metadata"]["uid"] == uid), None)
    reference = existing or ObjectReference(API_VERSION, uid, uid, DEFAULT_NAMESPACE, RUN_KIND)
    return events.build_event(events.RUN_RESTORE_PENDING, "resync-runs", reference, name, cause=cause, seed=name)
