"""Writes MachineConfigPools that a run has claimed, one after another, and records it: what is read is what is written.

A pool whose claim was lost, since somebody replaced it by its own file or by a backup with the claim of a run config
that is gone or has no run under way, is claimed again in the same write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from functions.mutex.ongoing import Ongoing, read_under_way
from functions.mutex.subject import now
from functions.trying import raise_first, tried
from kube.door.api import JSON_PATCH, absent_ok
from kube.door.api_errors import ApiError, Denied
from kube.door.deadline import seconds_left, within
from kube.door.sync_client import Cluster
from kube.mutex import claims, lookup, run_changes
from kube.mutex.objects import Verdict
from kube.mutex.pools import claim_patch, claimed_by, name_of, pool_path
from kube.mutex.run_record import Stage, uid_of
from kube.paths import Object

Patch = Callable[[Object], list[Object]]


class Changed(NamedTuple):
    """The names of the pools that got their patch, that were claimed again, and that are gone; and what failed."""

    written: list[str]
    claimed: list[str]
    gone: list[str]
    errors: list[ApiError]


def change_pools(
    found: Ongoing, names: Iterable[str], patch: Patch, event: BaseCloudEvent, cluster: Cluster, *, last: str = ""
) -> Changed:
    """Send each pool its patch, if any, whatever becomes of the others; `last` gets it only once all the others have.

    An error is `Denied` for a pool that is not the run's any more, `Conflict` when somebody writes it meanwhile.
    """
    changed = Changed([], [], [], [])

    def change(name: str) -> None:
        if name != last or not changed.errors:
            _change_pool(name, found, patch, event, cluster, changed)

    tried(change, names, changed.errors)
    return changed


def _change_pool(
    name: str, found: Ongoing, patch: Patch, event: BaseCloudEvent, cluster: Cluster, changed: Changed
) -> None:
    uid = uid_of(found.record)
    pool = cluster.run(absent_ok(cluster.api.get(pool_path(name))))
    if pool is None:
        changed.gone.append(name)
        return
    if claimed_by(pool) != uid and not _may_claim(pool, event, cluster):
        raise Denied(403, f"the MachineConfigPool {name} is not claimed by this run any more")
    claim, change = claim_patch(pool, uid), patch(pool)
    patch_pool(pool, [*claim, *change], cluster)
    changed.claimed.extend([name] if claim else [])
    changed.written.extend([name] if change else [])


def patch_pool(pool: Object, patch: list[Object], cluster: Cluster) -> Object:
    """The pool once it has got its patch, if any.

    One that hangs, as behind a webhook, has half of the time that is left, so that others get their turn. It is
    `Unavailable` then, and may be done all the same, or be done late: only to the pool as it was read. So it counts as
    not done, and whoever gets the event again reads the pool.
    """
    if not patch:
        return pool
    with within(seconds_left() / 2):
        return cluster.patch(pool_path(name_of(pool)), patch, JSON_PATCH)


def recorded(found: Ongoing, word: str, changed: Changed, verdict: Verdict, cluster: Cluster) -> Ongoing:
    """Record which pools are `paused` or `edited`, and where all are so the condition; the run as it is then.

    Raises the first error of a pool, as `raise_first` does.
    """
    is_all = not changed.errors
    change = run_changes.pools_changed(found.record, word, changed.written, changed.claimed, now(), is_all=is_all)
    found = found.written(cluster, change, *([verdict] if is_all else []))
    raise_first(changed.errors)
    return found


def _may_claim(pool: Object, event: BaseCloudEvent, cluster: Cluster) -> bool:
    """Whether no run has the pool, and that of the event, which may have ended since, still has its pools.

    Runs are read after the pool, so one that has it is among them. One that is just claiming records that last: it has
    changed no pool yet, waits for its turn as any other does, and then claims what it has lost.
    """
    owner = claimed_by(pool)
    if owner and owner in claims.holders(cluster.run(lookup.runs(cluster.api, None))):
        return False
    found = read_under_way(event, cluster)
    return found is not None and found.stage is not Stage.DONE
