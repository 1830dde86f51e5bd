"""Patches the MachineConfigPools that a run has claimed, provided that they are unchanged since the read.

A pool can lose its claim: another client applies the pool's original manifest, or a backup with an invalid claim. A
claim is invalid if its run config no longer exists or has no active run. The write that changes such a pool also claims
the pool again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from functions.best_effort import raise_first_error, try_each
from functions.mutex.active_run import ActiveRun, read_active_run
from functions.mutex.event_objects import utc_now
from kube.client.api import JSON_PATCH, get_or_none
from kube.client.api_errors import ApiError, Denied, Rejected
from kube.client.deadline import get_seconds_left, set_deadline
from kube.client.sync_client import SyncClient
from kube.mutex import claims, lookup, run_record
from kube.mutex.objects import Condition
from kube.mutex.pools import build_claim_patch, build_pool_path, get_claim_uid, get_name
from kube.mutex.run_record import Stage, get_run_config_uid
from kube.paths import Object

PatchBuilder = Callable[[Object], list[Object]]
RECORD_RESERVE_SECONDS = 0.3
"""Seconds reserved for recording the result after the last write of a pool."""


class PoolChanges(NamedTuple):
    """Result of patching several pools.

    Attributes:
        patched: Pools with a patch that was written, rejected or postponed.
        reclaimed: Pools with a repeated claim that was written, rejected or postponed.
        missing: Pools that do not exist.
        errors: The error of each pool that was not written.
    """

    patched: list[str]
    reclaimed: list[str]
    missing: list[str]
    errors: list[ApiError]

    def add(self, name: str, *, claim: list[Object], change: list[Object]) -> None:
        """Add a pool with a patch that was written, rejected or postponed."""
        self.reclaimed.extend([name] if claim else [])
        self.patched.extend([name] if change else [])


def patch_pools(
    active_run: ActiveRun,
    names: Iterable[str],
    build_patch: PatchBuilder,
    event: BaseCloudEvent,
    client: SyncClient,
    *,
    last_pool: str = "",
) -> PoolChanges:
    """Send each pool's patch, even if other patches fail; `last_pool` is written only if no other pool has failed.

    The errors include `Denied` for a pool that the run no longer claims, and `Conflict` if another client wrote the
    pool. The result lists rejected pools and a postponed `last_pool` like written pools, so that all of them wait for
    the tick. Otherwise, while one pool is rejected, the run would rewrite a pool that another client keeps reverting,
    without the pool's cooldown.
    """
    changes, uid = PoolChanges([], [], [], []), get_run_config_uid(active_run.record)
    patches = [(pool, build_claim_patch(pool, uid), build_patch(pool)) for pool in _read_pools(names, client, changes)]
    pending = [(pool, claim, change) for pool, claim, change in patches if claim or change]
    target_count = sum(get_name(pool) != last_pool for pool, *_ in pending)

    def patch_claimed_pool(pending_pool: tuple[Object, list[Object], list[Object]]) -> None:
        pool, claim, change = pending_pool
        name = get_name(pool)
        try:
            if name != last_pool or not changes.errors:
                _check_claim(pool, claim, event, client)
                patch_pool(pool, [*claim, *change], client, has_more_pools=name != last_pool and target_count > 1)
        except (Denied, Rejected) as error:
            changes.errors.append(error)
        changes.add(name, claim=claim, change=change)

    try_each(patch_claimed_pool, pending, changes.errors)
    return changes


def _read_pools(names: Iterable[str], client: SyncClient, changes: PoolChanges) -> list[Object]:
    """Return the pools that exist, and add the names of missing pools to `changes.missing`."""
    reads = {name: get_or_none(client.api.get(build_pool_path(name))) for name in names}
    pools_by_name = dict(zip(reads, client.gather_all(*reads.values()), strict=True))
    changes.missing.extend(name for name, pool in pools_by_name.items() if pool is None)
    return [pool for pool in pools_by_name.values() if pool is not None]


def patch_pool(pool: Object, patch: list[Object], client: SyncClient, *, has_more_pools: bool) -> Object:
    """Apply the patch, if any, and return the pool.

    If `has_more_pools` is true, the write may use half of the remaining time, so that a hanging webhook leaves enough
    time for the other pools. Otherwise the write may use all but the time for recording. A write that takes longer
    raises `Unavailable`. The API server may still carry out the write, but only on the version that was read. The write
    therefore counts as failed, and the next attempt reads the pool again.
    """
    if not patch:
        return pool
    left = get_seconds_left()
    with set_deadline(left / 2 if has_more_pools else max(left / 2, left - RECORD_RESERVE_SECONDS)):
        return client.patch(build_pool_path(get_name(pool)), patch, JSON_PATCH)


def record_pool_changes(
    active_run: ActiveRun, state: str, changes: PoolChanges, condition: Condition, client: SyncClient
) -> ActiveRun:
    """Record which pools are `paused` or `edited`, and write the condition if no pool failed; return the updated run.

    Raises the first error of a pool, as `raise_first_error` does.
    """
    is_complete = not changes.errors
    change = run_record.build_pools_change(
        active_run.record, state, changes.patched, changes.reclaimed, utc_now(), is_complete=is_complete
    )
    active_run = active_run.write_record(client, change, *([condition] if is_complete else []))
    raise_first_error(changes.errors)
    return active_run


def _check_claim(pool: Object, claim: list[Object], event: BaseCloudEvent, client: SyncClient) -> None:
    if claim and not _may_claim(pool, event, client):
        raise Denied(403, f'MachineConfigPool "{get_name(pool)}" is no longer claimed by this run')


def _may_claim(pool: Object, event: BaseCloudEvent, client: SyncClient) -> bool:
    """Return whether the event's run is active and still needs its pools, and no active run has claimed this pool.

    Runs are listed after the pool is read, so the list includes any run that claimed the pool. A run that is still
    claiming pools has not recorded its claims and has changed no pool, so its claim is ignored. That run claims the
    pool again when its turn comes.
    """
    owner = get_claim_uid(pool)
    if owner and owner in claims.list_active_run_config_uids(client.run(lookup.list_runs(client.api, None))):
        return False
    active_run = read_active_run(event, client)
    return active_run is not None and active_run.stage is not Stage.NODES_DONE
