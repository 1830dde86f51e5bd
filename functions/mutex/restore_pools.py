"""Restore the pools when all nodes are done or the MutexRunConfig is deleted during a run (step 7, MUT-49, MUT-51).

The step restores the pools' selectors, the canary's first. It then removes the nodes' labels, and finally unpauses the
pools and removes their claims. With this order, the deletion of a run upgrades no node whose pool stays paused. After a
deletion, a pool that an administrator had paused before the run stays paused.

If a pool or node cannot be patched, the step still restores the other pools. Only an error of the canary stops all
other pools. The step removes the labels only after all selectors are restored. The run ends only after all pools and
nodes are restored. The record lists the pools that were restored before an error, and the step does not change them
again.

A `run.restore_pending` that names a node concerns only that node, which has labels of a run that no longer exists. A
late write added these labels, or the MutexRunConfig was removed before the restore. Before the step removes the labels,
it restores only the pools of runs that no longer exist.

In: `run.nodes_done`, `run.restore_pending`. Out: `run.restored`.
Touches: mutexrunconfigs get, list, patch; mutexrunconfigs/status patch; mutexrules get; machineconfigpools list, patch;
nodes get, list, patch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import ObjectReference
from functions.best_effort import apply_to_each, raise_first_error
from functions.event_data import is_nonempty_string, require_data
from functions.mutex.active_run import load_unhalted_run
from functions.mutex.event_objects import (
    Replies,
    log_about,
    log_failure,
    read_object,
    report_refusals,
    utc_now,
    write_status,
)
from functions.mutex.pool_patching import patch_pool
from functions.steps import step
from kube.client.api import JSON_PATCH, get_or_none
from kube.client.api_errors import ApiError
from kube.client.deadline import get_seconds_left, set_deadline
from kube.client.sync_client import SyncClient
from kube.mutex import claims, lookup, pools, run_record
from kube.mutex.nodes import build_label_removal_patch, find_orphaned_nodes, get_run_id
from kube.mutex.objects import (
    RUN_KIND,
    Condition,
    build_finalizers_patch,
    build_object_path,
    get_condition,
    has_finalizer,
    is_deleting,
)
from kube.mutex.run_record import Stage, get_record
from kube.mutex.validation import AVAILABLE_CONDITION, format_finished_run
from kube.nodes import build_node_path
from kube.paths import Object
from kube.times import format_time

UPDATED_CONDITION = "MCPUpdated"
log = logging.getLogger("functions")


@step(
    "restore-pools",
    consumes=(events.RUN_NODES_DONE, events.RUN_RESTORE_PENDING),
    emits=(events.RUN_RESTORED,),
    on_failure=log_failure,
)
@report_refusals(UPDATED_CONDITION, "UpdateFailed")
def restore_pools(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Restore the nodes that the run labelled and the pools that it still claims, and change no other object."""
    if (name := require_data(event).get("node")) and is_nonempty_string(name):
        _unlabel_orphaned_node(str(name), client)
        return []
    # Read the pools before the run, so that a patch fails if another client changes a pool after that read.
    pools_by_name = client.run(lookup.list_pools_by_name(client.api, None))
    run = read_object(event, client, RUN_KIND)
    if run is None or not _may_restore(run, event, client):
        return []
    # List the runs after the pools, so that a claim of a run that is not in the list is certainly stale.
    runs = client.run(lookup.list_runs(client.api, None))
    claimed, errors = claims.select_pools_to_restore(run, pools_by_name.values(), runs), list[ApiError]()
    names = _restore_claimed_pools(claimed, run, client, errors)
    if errors and run_record.is_active(run):
        write_status(run, client, {"record": run_record.build_restored_change(get_record(run), names, utc_now())})
    raise_first_error(errors)
    _record_finished_run(run, client)
    log_about("restored all pools and nodes of the run", run)
    return [events.build_event(events.RUN_RESTORED, "restore-pools", ObjectReference.from_object(run), cause=event)]


def _may_restore(run: Object, event: BaseCloudEvent, client: SyncClient) -> bool:
    if is_deleting(run):
        return has_finalizer(run)
    if event.get_type() == events.RUN_RESTORE_PENDING:
        return not run_record.is_active(run)
    active_run = load_unhalted_run(run, client)
    return active_run is not None and active_run.stage is Stage.NODES_DONE


def _restore_claimed_pools(
    claimed_pools: list[Object], run: Object, client: SyncClient, errors: list[ApiError]
) -> list[str]:
    """Restore the pools and remove the node labels; return the names of the restored pools, and append errors."""
    restored = _restore_selectors(claimed_pools, partial(_get_original_selector, run), client, errors)
    if not errors:
        apply_to_each(partial(_unlabel_nodes, client=client), [run], errors)
    has_more_pools = len(restored) > 1
    return apply_to_each(lambda pool: _release_pool(pool, run, client, has_more_pools=has_more_pools), restored, errors)


def _restore_selectors(
    claimed_pools: list[Object],
    get_selector: Callable[[Object], Object | None],
    client: SyncClient,
    errors: list[ApiError],
) -> list[Object]:
    """Write the selector that `get_selector` returns into each pool; return the written pools, and append errors.

    A canary with the run's selector is written first, and the other pools only if that write succeeded. This order
    keeps each node in exactly one pool. If another pool were restored while the canary still has the run's selector, a
    released node would belong to both. If labels were removed before, a node without labels would belong to the canary,
    or to no pool at all.
    """

    def restore_selector(pool: Object, *, has_more_pools: bool) -> Object:
        patch = pools.build_selector_patch(pool, get_selector(pool))
        return patch_pool(pool, patch, client, has_more_pools=has_more_pools)

    canaries = [pool for pool in claimed_pools if pools.is_active_canary(pool)]
    restored = apply_to_each(partial(restore_selector, has_more_pools=len(canaries) > 1), canaries, errors)
    if errors:
        return restored
    others = [pool for pool in claimed_pools if not pools.is_active_canary(pool)]
    return restored + apply_to_each(partial(restore_selector, has_more_pools=len(claimed_pools) > 1), others, errors)


def _get_recorded_pool(run: Object, pool: Object) -> Object | None:
    """Return the pool's original state from the active run's record, or None if there is none."""
    record, name = get_record(run), pools.get_name(pool)
    if not run_record.is_active(run):
        return None
    recorded: Object | None = record["canary"] if name == record["canary"]["name"] else record["pools"].get(name)
    return recorded


def _get_original_selector(run: Object, pool: Object) -> Object | None:
    """Return the pool's recorded original selector, or else its current selector without the run's expressions."""
    recorded = _get_recorded_pool(run, pool)
    return recorded.get("selector") if recorded else pools.remove_rule_expressions(pools.get_selector(pool))


def _release_pool(pool: Object, run: Object, client: SyncClient, *, has_more_pools: bool) -> str:
    """Remove the claim from a pool, unpause the pool if the run's record contains it, and return the pool's name.

    If the MutexRunConfig is being deleted, a pool that was paused before the run stays paused.
    """
    recorded = _get_recorded_pool(run, pool)
    is_paused = is_deleting(run) and bool(recorded["paused"]) if recorded else pools.is_paused(pool)
    patch_pool(pool, pools.build_release_patch(pool, paused=is_paused), client, has_more_pools=has_more_pools)
    return pools.get_name(pool)


def _unlabel_nodes(run: Object, client: SyncClient) -> None:
    """Remove the run's labels from all nodes that still have them, concurrently.

    The patches may use half of the remaining time; the other half is reserved for the pools.
    """
    run_id = str(get_record(run).get("id") or "")
    if not run_id:
        return
    nodes = client.run(lookup.list_labelled_nodes(client.api, run_id, None))
    patches = [(node["metadata"]["name"], build_label_removal_patch(node, run_id)) for node in nodes]
    with set_deadline(get_seconds_left() / 2):
        client.gather_all(
            *(client.api.patch(build_node_path(name), patch, JSON_PATCH) for name, patch in patches if patch)
        )


def _unlabel_orphaned_node(node_name: str, client: SyncClient) -> None:
    """Remove the rule labels from a node whose run no longer exists.

    A canary pool with a run's selector selects nodes without labels, so it would upgrade this node immediately, without
    a Job (MUT-44). The function therefore first restores the pools of runs that no longer exist. While another run has
    such a canary pool, the node keeps its labels. Raises `Conflict` if another run labels the node at the same time.
    """
    node, pools_by_name = client.gather_all(
        get_or_none(client.api.get(build_node_path(node_name))), lookup.list_pools_by_name(client.api, None)
    )
    # List the runs after reading the node, so that a label of a run that is not in the list is certainly stale.
    runs = client.run(lookup.list_runs(client.api, None))
    if node is None or not find_orphaned_nodes([node], run_record.list_active_run_ids(runs)):
        return
    orphaned_pools = claims.find_orphaned_pools(pools_by_name.values(), runs)
    _restore_orphaned_pools(orphaned_pools, runs, client)
    if claims.has_active_canary(pools_by_name.values(), orphaned_pools):
        log.info(
            'node "%s" keeps the labels of a run that no longer exists, so that no other canary selects the node',
            node_name,
        )
        return
    client.patch(build_node_path(node_name), build_label_removal_patch(node, get_run_id(node)), JSON_PATCH)
    log.info('removed the labels of a run that no longer exists from node "%s"', node_name)


def _restore_orphaned_pools(orphaned_pools: list[Object], runs: list[Object], client: SyncClient) -> None:
    """Restore the pools of runs that no longer exist or have lost their records.

    A paused pool stays paused, because no user has approved the upgrade of its nodes. If pools failed, raises one of
    their errors after trying all pools.
    """
    run_uids, errors = {run["metadata"]["uid"] for run in runs}, list[ApiError]()

    def release_pool(pool: Object) -> None:
        if pools.get_claim_uid(pool) not in run_uids:
            patch = pools.build_release_patch(pool, paused=pools.is_paused(pool))
            patch_pool(pool, patch, client, has_more_pools=len(orphaned_pools) > 1)
        log.info(
            'restored MachineConfigPool "%s" of a run that no longer exists; spec.paused is unchanged',
            pools.get_name(pool),
        )

    def get_own_selector(pool: Object) -> Object | None:
        return pools.remove_rule_expressions(pools.get_selector(pool))

    apply_to_each(release_pool, _restore_selectors(orphaned_pools, get_own_selector, client, errors), errors)
    raise_first_error(errors)


def _record_finished_run(run: Object, client: SyncClient) -> None:
    """Record that the run is finished, clear the condition of an earlier failed restore, and remove the finalizer."""
    updated = (
        [Condition(UPDATED_CONDITION, True, "UpdateSucceeded")]
        if get_condition(run, UPDATED_CONDITION).get("status") == "False"
        else []
    )
    if run_record.is_active(run):
        record, version = get_record(run), get_record(run)["desired"]
        record_change: Object = {"finishedAt": format_time(utc_now()), "released": None, "failure": None}
        record_change |= {"abandoned": True} if is_deleting(run) else {}
        printed_fields = {
            "step": "Finished",
            "progress": f"{len(record['order'])} of {len(record['order'])}",
            "job": None,
        }
        condition = Condition(AVAILABLE_CONDITION, False, "UpgradeUnavailable", format_finished_run(version))
        run = write_status(run, client, {"record": record_change, **printed_fields}, [*updated, condition]) or run
    elif updated:
        run = write_status(run, client, {}, updated) or run
    if has_finalizer(run):
        client.patch(build_object_path(run), build_finalizers_patch(run, is_set=False))
