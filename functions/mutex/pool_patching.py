"""Patches the MachineConfigPools that a run has claimed, provided that they are unchanged since the read.

A pool can lose its claim: another client applies its original manifest, or a backup with an invalid claim. A claim is
invalid if its run config no longer exists or has no active run. The write that changes such a pool also claims it
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from functions.mutex.active_run import Ongoing, read_under_way
from functions.mutex.event_objects import now
from functions.best_effort import raise_first, tried
from kube.client.api import JSON_PATCH, absent_ok
from kube.client.api_errors import ApiError, Denied, Rejected
from kube.client.deadline import seconds_left, within
from kube.client.sync_client import Cluster
from kube.mutex import claims, lookup, run_changes
from kube.mutex.objects import Verdict
from kube.mutex.pools import claim_patch, claimed_by, name_of, pool_path
from kube.mutex.run_record import Stage, uid_of
from kube.paths import Object

Patch = Callable[[Object], list[Object]]
SECONDS_TO_RECORD = 0.3
"""Time reserved for recording the result after the only pool was written."""


class Changed(NamedTuple):
    """Result of writing pools.

    Attributes:
        patched: Pools whose patch was written, rejected or postponed.
        claimed: Pools whose repeated claim was written, rejected or postponed.
        gone: Pools that do not exist.
        errors: The error of each pool that was not written.
    """

    patched: list[str]
    claimed: list[str]
    gone: list[str]
    errors: list[ApiError]

    def note(self, name: str, *, claim: list[Object], change: list[Object]) -> None:
        """Note a pool that was written, or whose write was rejected or postponed."""
        self.claimed.extend([name] if claim else [])
        self.patched.extend([name] if change else [])


def change_pools(
    found: Ongoing, names: Iterable[str], patch: Patch, event: BaseCloudEvent, cluster: Cluster, *, last: str = ""
) -> Changed:
    """Send each pool its patch, if any, even if others fail; `last` is written only if no other pool has failed.

    The errors include `Denied` for a pool that the run no longer holds, and `Conflict` if another client wrote the
    pool. A pool whose write was rejected, and a postponed `last`, are noted like written ones. So they wait for the
    tick as well. Otherwise, as long as one pool is rejected, a pool that another client keeps changing back would be
    written again without its cooldown.
    """
    changed, uid = Changed([], [], [], []), uid_of(found.record)
    patches = [(pool, claim_patch(pool, uid), patch(pool)) for pool in _read(names, cluster, changed)]
    due = [(pool, claim, wanted) for pool, claim, wanted in patches if claim or wanted]
    targets = sum(name_of(pool) != last for pool, *_ in due)

    def change(each: tuple[Object, list[Object], list[Object]]) -> None:
        pool, claim, wanted = each
        name = name_of(pool)
        try:
            if name != last or not changed.errors:
                _check_claim(pool, claim, event, cluster)
                patch_pool(pool, [*claim, *wanted], cluster, others=name != last and targets > 1)
        except (Denied, Rejected) as error:
            changed.errors.append(error)
        changed.note(name, claim=claim, change=wanted)

    tried(change, due, changed.errors)
    return changed


def _read(names: Iterable[str], cluster: Cluster, changed: Changed) -> list[Object]:
    """Return the pools that exist, and note the others as gone."""
    known = {name: absent_ok(cluster.api.get(pool_path(name))) for name in names}
    found = dict(zip(known, cluster.together(*known.values()), strict=True))
    changed.gone.extend(name for name, pool in found.items() if pool is None)
    return [pool for pool in found.values() if pool is not None]


def patch_pool(pool: Object, patch: list[Object], cluster: Cluster, *, others: bool) -> Object:
    """Apply the patch, if any, and return the pool.

    While `others` are waiting, the write may use half of the remaining time, so that a hanging webhook leaves them
    enough. Otherwise it may use all but the time for recording. A write that takes longer raises `Unavailable`. The API
    server may still carry it out, but only on the version that was read. The write therefore counts as not done, and
    the next attempt reads the pool again.
    """
    if not patch:
        return pool
    left = seconds_left()
    with within(left / 2 if others else max(left / 2, left - SECONDS_TO_RECORD)):
        return cluster.patch(pool_path(name_of(pool)), patch, JSON_PATCH)


def recorded(found: Ongoing, word: str, changed: Changed, verdict: Verdict, cluster: Cluster) -> Ongoing:
    """Record which pools are `paused` or `edited`, and write the condition if all are; return the run as it is then.

    Raises the first error of a pool, as `raise_first` does.
    """
    is_all = not changed.errors
    change = run_changes.pools_changed(found.record, word, changed.patched, changed.claimed, now(), is_all=is_all)
    found = found.written(cluster, change, *([verdict] if is_all else []))
    raise_first(changed.errors)
    return found


def _check_claim(pool: Object, claim: list[Object], event: BaseCloudEvent, cluster: Cluster) -> None:
    if claim and not _may_claim(pool, event, cluster):
        raise Denied(403, f"the MachineConfigPool {name_of(pool)} is not claimed by this run any more")


def _may_claim(pool: Object, event: BaseCloudEvent, cluster: Cluster) -> bool:
    """Return whether no active run holds the pool, and the event's run, which may have ended, still needs its pools.

    Runs are read after the pool, so the list includes the run that holds it. A run that is still claiming pools has no
    record yet, so its claim does not count. It has changed no pool, waits for its turn like any other run, and then
    repeats a claim that it lost.
    """
    owner = claimed_by(pool)
    if owner and owner in claims.holders(cluster.run(lookup.runs(cluster.api, None))):
        return False
    found = read_under_way(event, cluster)
    return found is not None and found.stage is not Stage.DONE
