"""Resync runs: emit the events that rules, targets and runs still wait for, and no others (X-3, MUT-22, MUT-30).

Each tick checks all objects. It also emits `run.ended` for a node with the label of a run that no longer exists, unless
the node must keep it. A change of a pool, the ClusterVersion, a rule or a target continues the runs that wait for it.
Work that another client has undone is repeated. Work in progress is left to its step and the tick. So is a pool that
another client changes again within ten seconds.

In: a PingSource tick; `rule.checked`, `target.checked`, `run.finished`; an updated MachineConfigPool or ClusterVersion,
by reference. Out: `rule.found`, `target.found`, `run.found`, `run.validated`, `upgrade.found`, `pools.claimed`,
`pools.paused`, `nodes.labelled`, `job.due`, `node.cleared`, `node.released`, `run.completed`, `run.ended`.
Touches: mutexrunconfigs list; mutexrules list; mutextargets list; machineconfigpools list; nodes list;
clusterversions get; jobs list; nodemaintenances list.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from functools import partial

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from functions.pass_strategies import LookingAtState
from functions.mutex.active_run import TYPES, patience
from functions.mutex.event_objects import log_about, now
from functions.round_robin import Turns
from kube.client.sync_client import Cluster
from kube.mutex import claims, lookup, due_events, run_record
from kube.mutex.node_labels import run_of, strays
from kube.mutex.objects import API_VERSION, NAMESPACE, RUN, Item, has_finalizer
from kube.mutex.due_events import Due
from kube.mutex.run_snapshot import World
from kube.paths import MALFORMED, Object

CONSUMES = (
    *(events.TICK, events.RULE_CHECKED, events.TARGET_CHECKED, events.RUN_FINISHED),
    events.REFERENCE_UPDATED,
)
EMITS = tuple(TYPES.values())
LOOKING = LookingAtState(lambda hint: "all runs, by a tick" if hint.get_type() == events.TICK else "all runs")
"""Coalesces hints with hints and ticks with ticks, because a tick emits more events than a hint does."""
KINDS = (None, "MachineConfigPool", "ClusterVersion")
STRAYS = 25
"""Maximum number of orphaned nodes for which a tick emits `run.ended`; each costs an invocation of `restore-pools`."""
TURNS = Turns()
UNKNOWN = "unknown"
"""Placeholder for a uid that is missing in the label."""


def resync_runs(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Return the events that rules, targets, runs and orphaned nodes wait for.

    In a cluster without any of these, a tick costs four requests.
    """
    if event.get_extension("kind") not in KINDS:
        return []
    api, is_tick = cluster.api, event.get_type() == events.TICK
    runs, rules, targets = cluster.together(lookup.runs(api), lookup.rules(api), lookup.targets(api))
    labelled = cluster.run(lookup.labelled_nodes(api)) if is_tick else []
    found = _rules_due(rules, now()) if is_tick else []
    if runs or targets:
        world = cluster.run(lookup.world(api, list(filter(due_events.is_under_way, runs)) if is_tick else ()))
        found += [(item, _judged(partial(due_events.target_due, item, world), item)) for item in targets]
        found += [(item, _run_due(item, world, runs, is_tick=is_tick)) for item in runs]
    about = [(Reference.of(item), TYPES[due]) for item, dues in found for due in dues]
    said = [events.event(kind, "resync-runs", reference, cause=event) for reference, kind in about]
    stray = strays(labelled, run_record.ids_under_way(runs))
    return [*said, *(_stray_event(node, runs, event) for node in _strays_due(stray, runs, cluster))]


def _strays_due(stray: list[Object], runs: list[Object], cluster: Cluster) -> list[Object]:
    """Return at most `STRAYS` orphaned nodes, in rotation.

    The list is empty while they must keep their labels, because another run's canary would select them.
    """
    if not stray:
        return []
    known = list(cluster.run(lookup.pools(cluster.api)).values())
    left = claims.left_behind(known, runs)
    return TURNS.take(stray, STRAYS) if left or not claims.takes_strays(known, left) else []


def _stray_event(node: Item, runs: list[Object], cause: BaseCloudEvent) -> BaseCloudEvent:
    """Build the `run.ended` of an orphaned node; of a run config that no longer exists only the uid is known."""
    name, uid = node["metadata"]["name"], run_record.uid_of_id(run_of(node)) or UNKNOWN
    known = next((Reference.of(run) for run in runs if run["metadata"]["uid"] == uid), None)
    about = known or Reference(API_VERSION, uid, uid, NAMESPACE, RUN)
    return events.event(events.RUN_ENDED, "resync-runs", about, name, cause=cause, seed=name)


def _rules_due(rules: list[Object], moment: datetime) -> list[tuple[Object, list[Due]]]:
    return [(item, _judged(partial(due_events.rule_due, item, moment), item)) for item in rules]


def _run_due(run: Object, world: World, runs: list[Object], *, is_tick: bool) -> list[Due]:
    def due() -> list[Due]:
        found = due_events.run_due(run, world, runs, now(), patience(os.environ))
        if is_tick:
            return found
        if due_events.is_under_way(run):
            told = found if Due.CHECK in found else due_events.drift(run, world)
            return [due for due in told if not due_events.is_quarrel(run, world, due, now())]
        return [] if found == [Due.END] and has_finalizer(run) else found

    return _judged(due, run)


def _judged(due: Callable[[], list[Due]], item: Object) -> list[Due]:
    try:
        return due()
    except MALFORMED as error:
        log_about("resync-runs cannot look after this", item, error=repr(error))
        return []
