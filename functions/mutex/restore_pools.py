"""Restore the pools when all nodes are done, or the MutexRunConfig is deleted during a run (step 7, MUT-49, MUT-51).

The step restores the selectors, the canary's first. It then removes the node labels, and finally unpauses the pools and
removes their claims. In this order a deletion upgrades no node whose pool stays paused. After a deletion, a pool that
an administrator had paused before the run stays paused.

A pool or node that cannot be written does not keep other pools from being restored, except that all others wait for the
canary. The labels wait for all selectors, and the end of the run waits for everything. Pools that were restored before
an error are recorded, and not changed again.

A `run.ended` that names a node concerns only that node, which carries labels of a run that no longer exists. Either a
late write set them, or the MutexRunConfig was removed. Before it removes the labels, the step restores only pools of
such runs.

In: `run.completed`, `run.ended`. Out: `run.finished`.
Touches: mutexrunconfigs get, list, patch; mutexrunconfigs/status patch; mutexrules get; machineconfigpools list, patch;
nodes get, list, patch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from functions.event_data import data_of, is_text
from functions.mutex.active_run import ongoing
from functions.mutex.pool_patching import patch_pool
from functions.mutex.event_objects import Replies, log_about, now, read, telling, write_status
from functions.best_effort import raise_first, tried
from kube.client.api import JSON_PATCH, absent_ok
from kube.client.api_errors import ApiError
from kube.client.deadline import seconds_left, within
from kube.client.sync_client import Cluster
from kube.mutex import claims, lookup, pools, run_changes, run_record
from kube.mutex.node_labels import clear_patch, run_of, strays
from kube.mutex.objects import RUN, Verdict, condition, finalizers_patch, has_finalizer, is_deleting, path
from kube.mutex.run_record import Stage, record_of
from kube.mutex.validation import AVAILABLE
from kube.nodes import node_path
from kube.paths import Object
from kube.times import timestamp

CONSUMES = (events.RUN_COMPLETED, events.RUN_ENDED)
EMITS = (events.RUN_FINISHED,)
UPDATED = "MCPUpdated"
R = TypeVar("R")
log = logging.getLogger("functions")


@telling(UPDATED, "UpdateFailed")
def restore_pools(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Restore everything that the run changed and still holds, and leave everything else as it is."""
    if (name := data_of(event).get("node")) and is_text(name):
        _unlabel_stray(str(name), cluster)
        return []
    known = cluster.run(lookup.pools(cluster.api, None))  # read before the run: patches fail after later writes
    run = read(event, cluster, RUN)
    if run is None or not _may_end(run, event, cluster):
        return []
    runs = cluster.run(lookup.runs(cluster.api, None))  # read after the pools: a claim of an unlisted run is stale
    held, errors = claims.to_restore(run, known.values(), runs), list[ApiError]()
    names = _given_back(held, run, cluster, errors)
    if errors and run_record.is_active(run):
        write_status(run, cluster, {"record": run_changes.restored(record_of(run), names, now())})
    raise_first(errors)
    _close(run, cluster)
    log_about("the pools are as they were before the run", run)
    return [events.event(events.RUN_FINISHED, "restore-pools", Reference.of(run), cause=event)]


def _may_end(run: Object, event: BaseCloudEvent, cluster: Cluster) -> bool:
    if is_deleting(run):
        return has_finalizer(run)
    if event.get_type() == events.RUN_ENDED:
        return not run_record.is_active(run)
    found = ongoing(run, cluster)
    return found is not None and found.stage is Stage.DONE


def _before(pool: Object, run: Object) -> Object | None:
    """Return the recorded original state of a pool, or None if the record has none."""
    record, name = record_of(run), pools.name_of(pool)
    if not run_record.is_active(run):
        return None
    before: Object | None = record["canary"] if name == record["canary"]["name"] else record["pools"].get(name)
    return before


def _was_paused(pool: Object, run: Object) -> bool:
    before = _before(pool, run)
    return bool(before["paused"]) if before else pools.is_paused(pool)


def _given_back(held: list[Object], run: Object, cluster: Cluster, errors: list[ApiError]) -> list[str]:
    """Restore pools and return their names; append the errors of the others to `errors`.

    The order keeps each node in exactly one pool. Suppose the canary still has the run's selector. A released node
    would then belong to two pools if its own pool were restored, and a node without labels would belong to the canary.
    If its own pool still has the run's selector, a node without labels would belong to no pool.
    """
    done = _canary_first(partial(_with_selector, run=run, cluster=cluster), held, errors)
    if not errors:
        tried(partial(_unlabel, cluster=cluster), [run], errors)
    return tried(partial(_released, run=run, cluster=cluster, others=len(done) > 1), done, errors)


def _canary_first(do: Callable[..., R], held: list[Object], errors: list[ApiError]) -> list[R]:
    """Call `do` for each pool, first for a canary with the run's selector, and return the results.

    The other pools follow only if the canary succeeded. `do` gets the argument `others`: whether more pools are
    waiting. Errors are appended to `errors`.
    """
    done: list[R] = []
    for is_canary in (True, False):
        if not errors:
            some = [pool for pool in held if pools.takes_released(pool) is is_canary]
            done += tried(partial(do, others=len(some if is_canary else held) > 1), some, errors)
    return done


def _with_selector(pool: Object, run: Object, cluster: Cluster, *, others: bool) -> Object:
    """Restore the selector that the pool had before the run, and return the pool."""
    before = _before(pool, run)
    wanted = before.get("selector") if before else pools.without_rules(pools.selector(pool))
    return patch_pool(pool, pools.selector_patch(pool, wanted), cluster, others=others)


def _released(pool: Object, run: Object, cluster: Cluster, *, others: bool) -> str:
    """Unpause a pool, or leave it paused as it was before the run, and remove the claim; return the pool's name."""
    goes_on = run_record.is_active(run) and not is_deleting(run) and _before(pool, run)
    patch = pools.release_patch(pool, paused=False if goes_on else _was_paused(pool, run))
    patch_pool(pool, patch, cluster, others=others)
    return pools.name_of(pool)


def _unlabel(run: Object, cluster: Cluster) -> None:
    """Remove the run's labels from all nodes that still carry them, concurrently.

    This may use half of the remaining time; the other half is for the pools.
    """
    run_id = str(record_of(run).get("id") or "")
    if not run_id:
        return
    found = cluster.run(lookup.labelled_nodes(cluster.api, run_id, None))
    patches = [(node["metadata"]["name"], clear_patch(node, run_id)) for node in found]
    with within(seconds_left() / 2):
        cluster.together(*(cluster.api.patch(node_path(name), patch, JSON_PATCH) for name, patch in patches if patch))


def _unlabel_stray(name: str, cluster: Cluster) -> None:
    """Remove the labels from a node whose run no longer exists; this fails if another run labels it meanwhile.

    A canary with the run's selector selects nodes without labels, so it would upgrade this node at once, without a Job
    (MUT-44). The function therefore first restores the pools of runs that no longer exist. While another run has such a
    canary, the node keeps its labels.
    """
    node, known = cluster.together(absent_ok(cluster.api.get(node_path(name))), lookup.pools(cluster.api, None))
    runs = cluster.run(lookup.runs(cluster.api, None))  # read after the node: a label of an unlisted run is stale
    if node is None or not strays([node], run_record.ids_under_way(runs)):
        return
    left, errors = claims.left_behind(known.values(), runs), list[ApiError]()
    _canary_first(partial(_give_back, runs=runs, cluster=cluster), left, errors)
    raise_first(errors)
    if claims.takes_strays(known.values(), left):
        log.info("node %s keeps the labels of a run that is no more: another run's canary would have it", name)
        return
    cluster.patch(node_path(name), clear_patch(node, run_of(node)), JSON_PATCH)
    log.info("node %s carried labels of a run that is no more", name)


def _give_back(pool: Object, runs: list[Object], cluster: Cluster, *, others: bool) -> None:
    """Restore a pool whose run will not restore it, because it no longer exists or has lost its record.

    A paused pool stays paused, because no user has approved the upgrade of its nodes.
    """
    own = pools.without_rules(pools.selector(pool))
    pool = patch_pool(pool, pools.selector_patch(pool, own), cluster, others=others)
    if pools.claimed_by(pool) not in {run["metadata"]["uid"] for run in runs}:
        patch_pool(pool, pools.release_patch(pool, paused=pools.is_paused(pool)), cluster, others=others)
    log.info(
        "MachineConfigPool %s was left by a run that is no more, and is given back as it is paused", pools.name_of(pool)
    )


def _close(run: Object, cluster: Cluster) -> None:
    """Mark the run as finished, clear the condition of an earlier failed attempt, and remove the finalizer."""
    updated = [Verdict(UPDATED, True, "UpdateSucceeded")] if condition(run, UPDATED).get("status") == "False" else []
    if run_record.is_active(run):
        record, wanted = record_of(run), record_of(run)["desired"]
        change: Object = {"finishedAt": timestamp(now()), "released": None, "failure": None}
        change |= {"abandoned": True} if is_deleting(run) else {}
        shown = {"step": "Finished", "progress": f"{len(record['order'])} of {len(record['order'])}", "job": None}
        done = Verdict(AVAILABLE, False, "UpgradeUnavailable", f"the run to {wanted} is finished")
        run = write_status(run, cluster, {"record": change, **shown}, [*updated, done]) or run
    elif updated:
        run = write_status(run, cluster, {}, updated) or run
    if has_finalizer(run):
        cluster.patch(path(run), finalizers_patch(run, ours=False))
