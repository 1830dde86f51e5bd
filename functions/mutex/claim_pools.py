"""Claim the pools of a run, and record their original state before the run changes anything (MUT-34, MUT-44).

A run claims its pools in the order of their names, so that two runs cannot deadlock. A second run waits for the first,
even if their pools differ, and its condition reports that. A state that it recorded now would be hours old when it
begins (MUT-49). From this step on, the finalizer keeps the MutexRunConfig until everything is restored (MUT-51).

In: `upgrade.found`. Out: `pools.claimed`.
Touches: mutexrunconfigs get, list, patch; mutexrunconfigs/status patch; mutexrules get; mutextargets get;
machineconfigpools list, patch; nodes list; clusterversions get; events create in node-upgrade-mutex-operator.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import Ongoing
from functions.mutex.event_objects import Replies, announce, log_about, now, read, telling, write_status
from kube.client.api import JSON_PATCH
from kube.client.sync_client import Cluster
from kube.mutex import claims, lookup, pools, run_changes, run_record
from kube.mutex.objects import (
    RUN,
    Verdict,
    conditions_with,
    finalizers_patch,
    has_finalizer,
    is_deleting,
    is_true,
    path,
    references,
)
from kube.mutex.run_record import Stage
from kube.mutex.validation import CONFIG_VALIDATED, detection, named, outside_verdict
from kube.mutex.run_snapshot import World
from kube.paths import Object

CONSUMES = (events.UPGRADE_FOUND,)
EMITS = (events.POOLS_CLAIMED,)
PAUSED = "TargetPoolsPaused"


@telling(PAUSED, "NotPaused")
def claim_pools(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Claim all pools or wait; pools that are already claimed stay claimed.

    Raises `Conflict` if another client writes an object at the same time.
    """
    run = read(event, cluster, RUN)
    if run is None or is_deleting(run):
        return []
    if run_record.is_active(run):
        known = Ongoing(_kept(run, cluster), {})
        return known.answer(events.POOLS_CLAIMED, "claim-pools", event) if known.stage is Stage.CLAIMED else []
    if not is_true(run, CONFIG_VALIDATED):
        return []
    world, runs = _read(run, cluster)
    wanted = detection(run, world, run_record.done_version(run)).version
    names = claims.wanted_names(run, world.pool_names(run))
    if not wanted or not set(names) <= set(world.pools):
        return []  # the state has changed since the event: the tick emits what is due now
    if said := _awaited(run, names, world, runs):
        write_status(run, cluster, {"step": "Waiting"}, [Verdict(PAUSED, False, "NotPaused", said)])
        return []
    run = _kept(run, cluster)
    for name in names:
        _claim(world.pools[name], run, cluster)
    return _begin(event, run, wanted, world, cluster)


def _read(run: Object, cluster: Cluster) -> tuple[World, list[Object]]:
    """Read the latest state, which the record will store.

    Selectors are returned without the expressions of a run that no longer exists. Runs are read after pools, so the run
    config that claims a pool is either in the list or deleted.
    """
    api = cluster.api
    rules, targets, found, nodes, version = cluster.together(
        lookup.named_rules(api, references(run, "mutexRules")),
        lookup.named_targets(api, references(run, "mutexTargets")),
        lookup.pools(api, None),
        lookup.nodes(api, None),
        lookup.cluster_version(api),
    )
    before = {name: pools.as_before(pool) for name, pool in found.items()}
    return World(rules, targets, before, nodes, version), cluster.run(lookup.runs(api, None))


def _awaited(run: Object, names: list[str], world: World, runs: list[Object]) -> str:
    """Return the runs that this run waits for as text, "" if there are none.

    While another run is active, the state that this run would record can still change.
    """
    rivals = claims.rivals(run, names, world.pools, runs)
    said = [f"MachineConfigPool {pool} is claimed by {rival}" for pool, rival in rivals.items()]
    if others := claims.under_way(run, runs):
        said.append(f"{named(others)} under way, and one run upgrades nodes at a time")
    return "; ".join(said)


def _kept(run: Object, cluster: Cluster) -> Object:
    """Return the run config with our finalizer.

    The finalizer is added again if another client replaced the object with its own manifest during the run.
    """
    return run if has_finalizer(run) else cluster.patch(path(run), finalizers_patch(run, ours=True))


def _claim(pool: Object, run: Object, cluster: Cluster) -> None:
    patch = pools.claim_patch(pool, run["metadata"]["uid"])
    if patch:
        cluster.patch(pools.pool_path(pools.name_of(pool)), patch, JSON_PATCH)


def _begin(event: BaseCloudEvent, run: Object, wanted: str, world: World, cluster: Cluster) -> Replies:
    members = {name: world.nodes[name] for name in world.members_of(run)}
    names = world.pool_names(run)
    rules = references(run, "mutexRules")
    record = run_changes.begun(run, wanted, world.pools, names, members, rules, now())
    warning = outside_verdict({node["metadata"]["uid"] for node in members.values()}, world.nodes)
    begun = {**run, "status": {**run["status"], "record": record}}
    shown = {"job": "", **run_changes.shown(begun, {}, lambda _rule: False)}
    metadata, conditions = run["metadata"], conditions_with(run, [warning], now())
    values = {"record": record, "conditions": conditions, **shown}
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        *({"op": "add", "path": f"/status/{name}", "value": value} for name, value in values.items() if value),
    ]
    run = cluster.patch(f"{path(run)}/status", patch, JSON_PATCH)
    log_about(f"Begin the run to {wanted} over {len(members)} nodes", run)
    if warning.holds:
        announce(run, warning.reason, warning.message, cluster)
    return Ongoing(run, {}).answer(events.POOLS_CLAIMED, "claim-pools", event)
