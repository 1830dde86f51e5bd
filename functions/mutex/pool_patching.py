"""Patches the MachineConfigPools that a run has claimed, provided that they are unchanged since the read.

A pool can lose its claim: another client applies the pool's original manifest, or a backup with an invalid claim. A
claim is invalid if its run config no longer exists or has no active run. The write that changes such a pool also claims
the pool again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from functions.best_effort import raise_first_error
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


@dataclass(frozen=True)
class PoolPatch:
    """What a run writes to one pool: its claim, if the pool has lost it, and the change that the step makes."""

    pool: Object
    claim: list[Object]
    change: list[Object]

    @property
    def name(self) -> str:
        """Return the pool's name."""
        return get_name(self.pool)


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
    pools_by_name, uid = _read_pools(names, client), get_run_config_uid(active_run.record)
    patches = [
        PoolPatch(pool, build_claim_patch(pool, uid), build_patch(pool)) for pool in pools_by_name.values() if pool
    ]
    errors = _write_patches([patch for patch in patches if patch.claim or patch.change], event, client, last_pool)
    listed = [patch for patch in patches if _is_settled(errors.get(patch.name))]
    return PoolChanges(
        patched=[patch.name for patch in listed if patch.change],
        reclaimed=[patch.name for patch in listed if patch.claim],
        missing=[name for name, pool in pools_by_name.items() if pool is None],
        errors=list(errors.values()),
    )


def _is_settled(error: ApiError | None) -> bool:
    """Return whether a write succeeded, was postponed, or was rejected; the broker's retry repeats any other write."""
    return error is None or isinstance(error, (Denied, Rejected))


def _read_pools(names: Iterable[str], client: SyncClient) -> dict[str, Object | None]:
    """Return the pools by name, None for a pool that does not exist."""
    reads = {name: get_or_none(client.api.get(build_pool_path(name))) for name in names}
    return dict(zip(reads, client.gather_all(*reads.values()), strict=True))


def _write_patches(
    patches: list[PoolPatch], event: BaseCloudEvent, client: SyncClient, last_pool: str
) -> dict[str, ApiError]:
    """Send the patches and return the errors by the pool's name; postpone `last_pool` if another pool has failed."""
    errors: dict[str, ApiError] = {}
    has_several_targets = sum(patch.name != last_pool for patch in patches) > 1
    for patch in patches:
        if patch.name == last_pool and errors:
            continue
        try:
            if patch.claim:
                _check_claim(patch.pool, event, client)
            has_more_pools = patch.name != last_pool and has_several_targets
            patch_pool(patch.pool, [*patch.claim, *patch.change], client, has_more_pools=has_more_pools)
        except ApiError as error:
            errors[patch.name] = error
    return errors


def _check_claim(pool: Object, event: BaseCloudEvent, client: SyncClient) -> None:
    """Raise `Denied` if the event's run may not claim this pool again.

    The run must be active and still need its pools, and no other active run may claim the pool. Runs are listed after
    the pool is read, so the list includes any run that claimed the pool. A run that is still claiming pools has not
    recorded its claims and has changed no pool, so its claim is ignored. That run claims the pool again when its turn
    comes.
    """
    owner = get_claim_uid(pool)
    if not owner or owner not in claims.list_active_run_config_uids(client.run(lookup.list_runs(client.api, None))):
        active_run = read_active_run(event, client)
        if active_run is not None and active_run.stage is not Stage.NODES_DONE:
            return
    raise Denied(403, f'MachineConfigPool "{get_name(pool)}" is no longer claimed by this run')


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
