"""Restore the pools when all nodes are done, or when the MutexRunConfig is deleted amid a run (step 7, MUT-49, MUT-51).

First the selectors, the canary's before all; then the labels of nodes; then the pools go on, and are nobody's. So a
deletion upgrades no node whose pool stays paused. A pool that an administrator had paused stays so after a deletion.

A pool or a node that is refused keeps no pool from being given back, but the canary all others; labels wait for all
selectors, and the end of the run for everything. What was given back until then is recorded, and then left alone.

A `run.ended` that names a node is of that node, which carries labels of a run that is no more: a late write has set
them, or the MutexRunConfig vanished. Of pools only those are given back before that such a run has left.

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
from functions.data import data_of, is_text
from functions.mutex.ongoing import ongoing
from functions.mutex.pool_writing import patch_pool
from functions.mutex.subject import Replies, log_about, now, read, telling, write_status
from functions.trying import raise_first, tried
from kube.door.api import JSON_PATCH, absent_ok
from kube.door.api_errors import ApiError
from kube.door.deadline import seconds_left, within
from kube.door.sync_client import Cluster
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
    """Give back whatever the run has changed and still has; what it has no more is left alone."""
    if (name := data_of(event).get("node")) and is_text(name):
        _unlabel_stray(str(name), cluster)
        return []
    known = cluster.run(lookup.pools(cluster.api, None))  # before the run: what another one writes since is not undone
    run = read(event, cluster, RUN)
    if run is None or not _may_end(run, event, cluster):
        return []
    runs = cluster.run(lookup.runs(cluster.api, None))  # after the pools: who claims one is among them, or is gone
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
    """What the record has of a pool, None for nothing."""
    record, name = record_of(run), pools.name_of(pool)
    if not run_record.is_active(run):
        return None
    before: Object | None = record["canary"] if name == record["canary"]["name"] else record["pools"].get(name)
    return before


def _was_paused(pool: Object, run: Object) -> bool:
    before = _before(pool, run)
    return bool(before["paused"]) if before else pools.is_paused(pool)


def _given_back(held: list[Object], run: Object, cluster: Cluster, errors: list[ApiError]) -> list[str]:
    """The names of the pools that are given back; why others are not is added to `errors`.

    While the canary is as the run has edited it, a node that is released would be of two pools if its own were as
    before, and one whose labels go the canary's. Without labels one would be of none, if its own is still edited.
    """
    done = _canary_first(partial(_with_selector, run=run, cluster=cluster), held, errors)
    if not errors:
        tried(partial(_unlabel, cluster=cluster), [run], errors)
    return tried(partial(_released, run=run, cluster=cluster, others=len(done) > 1), done, errors)


def _canary_first(do: Callable[..., R], held: list[Object], errors: list[ApiError]) -> list[R]:
    """What came of each pool, told whether there are `others`: first of a canary that takes nodes, and of the others
    only once that is done. Why it was not done is added to `errors`."""
    done: list[R] = []
    for is_canary in (True, False):
        if not errors:
            some = [pool for pool in held if pools.takes_released(pool) is is_canary]
            done += tried(partial(do, others=len(some if is_canary else held) > 1), some, errors)
    return done


def _with_selector(pool: Object, run: Object, cluster: Cluster, *, others: bool) -> Object:
    """The pool with the selector that it had, in the cluster too."""
    before = _before(pool, run)
    wanted = before.get("selector") if before else pools.without_rules(pools.selector(pool))
    return patch_pool(pool, pools.selector_patch(pool, wanted), cluster, others=others)


def _released(pool: Object, run: Object, cluster: Cluster, *, others: bool) -> str:
    """Have a pool go on, or stay paused as it was, and be nobody's; its name."""
    goes_on = run_record.is_active(run) and not is_deleting(run) and _before(pool, run)
    patch = pools.release_patch(pool, paused=False if goes_on else _was_paused(pool, run))
    patch_pool(pool, patch, cluster, others=others)
    return pools.name_of(pool)


def _unlabel(run: Object, cluster: Cluster) -> None:
    """Take the labels off the nodes that still carry the run's, side by side; the pools have half of the time."""
    run_id = str(record_of(run).get("id") or "")
    if not run_id:
        return
    found = cluster.run(lookup.labelled_nodes(cluster.api, run_id, None))
    patches = [(node["metadata"]["name"], clear_patch(node, run_id)) for node in found]
    with within(seconds_left() / 2):
        cluster.together(*(cluster.api.patch(node_path(name), patch, JSON_PATCH) for name, patch in patches if patch))


def _unlabel_stray(name: str, cluster: Cluster) -> None:
    """Take the labels off a node whose run is no more; refused when another run labels it meanwhile.

    A canary that takes whoever carries none would have it at once, without a Job (MUT-44): what that run has left of
    one is given back before, and while another run has one the node keeps its labels.
    """
    node, known = cluster.together(absent_ok(cluster.api.get(node_path(name))), lookup.pools(cluster.api, None))
    runs = cluster.run(lookup.runs(cluster.api, None))  # after the node: whoever labelled it is among them, or is gone
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
    """Give a pool back whose run left it behind. It stays paused, as nobody said that its nodes may be upgraded."""
    own = pools.without_rules(pools.selector(pool))
    pool = patch_pool(pool, pools.selector_patch(pool, own), cluster, others=others)
    if pools.claimed_by(pool) not in {run["metadata"]["uid"] for run in runs}:
        patch_pool(pool, pools.release_patch(pool, paused=pools.is_paused(pool)), cluster, others=others)
    log.info(
        "MachineConfigPool %s was left by a run that is no more, and is given back as it is paused", pools.name_of(pool)
    )


def _close(run: Object, cluster: Cluster) -> None:
    """Write that it is finished and, where a try was refused, that it is not any more; let the object go."""
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
