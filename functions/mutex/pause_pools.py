"""Pause the targets' pools, so that none of their nodes is upgraded before its Jobs run (step 3, MUT-33, MUT-34).

Only one run at a time pauses pools and upgrades nodes, even if the pools differ (MUT-44). To acquire this right, a run
writes `turnAt` to its record, and then checks all other runs again. If another run has also written `turnAt`, the run
clears its own. In the next attempt, the run that began first acquires the right. If one pool cannot be written, the
step still pauses the other pools.

In: `pools.claimed`. Out: `pools.paused`.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; machineconfigpools get, patch.
"""

from __future__ import annotations

from functools import partial

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import ActiveRun, read_repairable_run
from functions.mutex.event_objects import Replies, log_failure, report_refusals, utc_now
from functions.mutex.pool_patching import patch_pools, record_pool_changes
from functions.steps import step
from kube.client.sync_client import SyncClient
from kube.mutex import claims, lookup
from kube.mutex.objects import Condition
from kube.mutex.pools import build_pause_patch, get_name
from kube.mutex.run_record import RunRecord, Stage
from kube.mutex.validation import format_names
from kube.paths import Object
from kube.times import format_time

PAUSED_CONDITION = "TargetPoolsPaused"


@step("pause-pools", consumes=(events.POOLS_CLAIMED,), emits=(events.POOLS_PAUSED,), on_failure=log_failure)
@report_refusals(PAUSED_CONDITION, "NotPaused")
def pause_pools(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Pause each unpaused pool of the run's targets; in a halted run, pause again what another client has unpaused."""
    active_run = read_repairable_run(event, client, "pausedAt")
    if active_run is not None and active_run.stage is Stage.NODES_DONE:
        return []  # If the event arrives after all nodes are done, the pools are being restored.
    if active_run is not None and not active_run.record.get("pausedAt"):
        active_run = _acquire_exclusive_right(active_run, client)
    if active_run is None:
        return []
    names = [*active_run.record["pools"], active_run.record["canary"]["name"]]  # The canary is claimed, not paused.
    changes = patch_pools(active_run, names, partial(_build_pause_patch, active_run.record), event, client)
    condition = Condition(PAUSED_CONDITION, True, "Paused", _build_paused_message(active_run.record, changes.missing))
    active_run = record_pool_changes(active_run, "paused", changes, condition, client)
    return active_run.build_reply_unless_halted(events.POOLS_PAUSED, "pause-pools", event)


def _build_pause_patch(record: RunRecord, pool: Object) -> list[Object]:
    return build_pause_patch(pool, paused=True) if get_name(pool) in record["pools"] else []


def _acquire_exclusive_right(active_run: ActiveRun, client: SyncClient) -> ActiveRun | None:
    """Acquire the exclusive right to upgrade nodes (`turnAt`) and return the updated run, or None if it must wait."""
    if others := claims.list_runs_to_wait_for(active_run.run, client.run(lookup.list_runs(client.api, None))):
        _report_wait(active_run, others, client)
        return None
    if not active_run.record.get("turnAt"):
        active_run = active_run.write_record(client, {"turnAt": format_time(utc_now())})
    if others := claims.list_runs_with_exclusive_right(active_run.run, client.run(lookup.list_runs(client.api, None))):
        _report_wait(active_run, others, client)
        return None
    return active_run


def _report_wait(active_run: ActiveRun, other_runs: list[str], client: SyncClient) -> None:
    """Report in the condition which other runs this run waits for, and clear `turnAt`; `resync-runs` retries."""
    message = f"waiting for {format_names(other_runs)}: only one run upgrades nodes at a time"
    active_run.write_record(client, {"turnAt": None}, Condition(PAUSED_CONDITION, False, "NotPaused", message))


def _build_paused_message(record: RunRecord, missing_pools: list[str]) -> str:
    paused_before = [name for name, pool in record["pools"].items() if pool["paused"]]
    messages = [f"already paused before the run: {format_names(paused_before)}"] if paused_before else []
    if missing_pools:
        messages.append(f"deleted since the run began: {format_names(missing_pools)}")
    return "; ".join(messages)
