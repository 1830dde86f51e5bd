"""Patches the MachineConfigPools that a run has claimed, unless another client has changed them since the read.

A pool loses its claim if another client applies the pool's original manifest, or a backup with an invalid claim. A
claim is invalid if its MutexRunConfig no longer exists or has no active run. The patch of such a pool also adds the
run's claim again.
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
"""Seconds reserved for writing the run's record after the last patch of a pool."""


@dataclass(frozen=True)
class PoolPatch:
    """JSON patch of one pool: operations that restore a lost claim of the run, and operations of the step's change."""

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
        patched: Names of the pools whose patch was written, rejected or postponed.
        reclaimed: Names of the pools whose renewed claim was written, rejected or postponed.
        missing: Names of the pools that do not exist.
        errors: The errors of the failed patches.
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
    """Send each pool's patch, even if other patches fail; patch `last_pool` only if no other patch has failed.

    The errors include `Denied` for a pool that the run no longer claims, and `Conflict` for a pool that another client
    has changed. The result lists rejected pools and a postponed `last_pool` like written pools, so that the record
    starts a cooldown for all of them. Otherwise, while one pool is rejected, the run would repeatedly rewrite a pool
    that another client keeps reverting.
    """
    pools_by_name, uid = _read_pools(names, client), get_run_config_uid(active_run.record)
    patches = [
        PoolPatch(pool, build_claim_patch(pool, uid), build_patch(pool)) for pool in pools_by_name.values() if pool
    ]
    errors = _write_patches([patch for patch in patches if patch.claim or patch.change], event, client, last_pool)
    listed = [patch for patch in patches if _needs_no_retry(errors.get(patch.name))]
    return PoolChanges(
        patched=[patch.name for patch in listed if patch.change],
        reclaimed=[patch.name for patch in listed if patch.claim],
        missing=[name for name, pool in pools_by_name.items() if pool is None],
        errors=list(errors.values()),
    )


def _needs_no_retry(error: ApiError | None) -> bool:
    """Return whether the patch was sent or postponed without an error, or was rejected, so that no retry is needed."""
    return error is None or isinstance(error, (Denied, Rejected))


def _read_pools(names: Iterable[str], client: SyncClient) -> dict[str, Object | None]:
    """Read the pools concurrently and return them by name, with None for a pool that does not exist."""
    reads = {name: get_or_none(client.api.get(build_pool_path(name))) for name in names}
    return dict(zip(reads, client.gather_all(*reads.values()), strict=True))


def _write_patches(
    patches: list[PoolPatch], event: BaseCloudEvent, client: SyncClient, last_pool: str
) -> dict[str, ApiError]:
    """Send the patches and return the errors by pool name; skip `last_pool` if another patch has failed."""
    errors: dict[str, ApiError] = {}
    has_several_targets = sum(patch.name != last_pool for patch in patches) > 1
    for patch in patches:
        if patch.name == last_pool and errors:
            continue
        try:
            if patch.claim:
                _check_claim_allowed(patch.pool, event, client)
            has_more_pools = patch.name != last_pool and has_several_targets
            patch_pool(patch.pool, [*patch.claim, *patch.change], client, has_more_pools=has_more_pools)
        except ApiError as error:
            errors[patch.name] = error
    return errors


def _check_claim_allowed(pool: Object, event: BaseCloudEvent, client: SyncClient) -> None:
    """Raise `Denied` if the event's run may not claim this pool again.

    The run must be active and still need its pools, and no other active run may claim the pool. The runs are listed
    after the pool is read, so the list includes any run that claimed the pool. The claim of a run that has not begun is
    ignored, because that run has changed no pool; it claims the pool again before it begins.
    """
    owner = get_claim_uid(pool)
    if not owner or owner not in claims.list_active_run_config_uids(client.run(lookup.list_runs(client.api, None))):
        active_run = read_active_run(event, client)
        if active_run is not None and active_run.stage is not Stage.NODES_DONE:
            return
    raise Denied(403, f'MachineConfigPool "{get_name(pool)}" is no longer claimed by this run')


def patch_pool(pool: Object, patch: list[Object], client: SyncClient, *, has_more_pools: bool) -> Object:
    """Apply the patch, unless it is empty, and return the pool.

    If `has_more_pools` is true, the request may use half of the remaining time, so that a hanging webhook leaves enough
    time for the other pools. Otherwise the request may use all but `RECORD_RESERVE_SECONDS`. Raises `Unavailable` after
    that time. The API server may still apply the patch, unless another client has changed the pool. The next attempt
    therefore reads the pool again.
    """
    if not patch:
        return pool
    left = get_seconds_left()
    with set_deadline(left / 2 if has_more_pools else max(left / 2, left - RECORD_RESERVE_SECONDS)):
        return client.patch(build_pool_path(get_name(pool)), patch, JSON_PATCH)


def record_pool_changes(
    active_run: ActiveRun, state: str, changes: PoolChanges, condition: Condition, client: SyncClient
) -> ActiveRun:
    """Record the changed pools, write the condition if no pool failed, and return the updated run.

    `state` is the pools' new state: "paused" or "edited". If pools failed, raises one of their errors, as
    `raise_first_error` does.
    """
    is_complete = not changes.errors
    change = run_record.build_pools_change(
        active_run.record, state, changes.patched, changes.reclaimed, utc_now(), is_complete=is_complete
    )
    active_run = active_run.write_record(client, change, *([condition] if is_complete else []))
    raise_first_error(changes.errors)
    return active_run
