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
from kube.door.api_errors import ApiError, Denied, Rejected
from kube.door.deadline import seconds_left, within
from kube.door.sync_client import Cluster
from kube.mutex import claims, lookup, run_changes
from kube.mutex.objects import Verdict
from kube.mutex.pools import claim_patch, claimed_by, name_of, pool_path
from kube.mutex.run_record import Stage, uid_of
from kube.paths import Object

Patch = Callable[[Object], list[Object]]
SECONDS_TO_RECORD = 0.3
"""What recording needs, once the only pool that is to be written has answered."""


class Changed(NamedTuple):
    """The pools that got their patch, that were claimed again, or were refused that; that are gone; and what failed."""

    patched: list[str]
    claimed: list[str]
    gone: list[str]
    errors: list[ApiError]

    def note(self, name: str, *, claim: list[Object], change: list[Object]) -> None:
        """Note what was written of a pool, or refused."""
        self.claimed.extend([name] if claim else [])
        self.patched.extend([name] if change else [])


def change_pools(
    found: Ongoing, names: Iterable[str], patch: Patch, event: BaseCloudEvent, cluster: Cluster, *, last: str = ""
) -> Changed:
    """Send each pool its patch, if any, whatever becomes of the others; `last` gets it only once all the others have.

    An error is `Denied` for a pool that is not the run's any more, `Conflict` when somebody writes it meanwhile. What
    is refused, and a `last` that waits for it, is noted as what is written: it waits for the tick, too, and one that
    somebody changes back each time is not changed as often beside it.
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
    """The pools that are there."""
    known = {name: absent_ok(cluster.api.get(pool_path(name))) for name in names}
    found = dict(zip(known, cluster.together(*known.values()), strict=True))
    changed.gone.extend(name for name, pool in found.items() if pool is None)
    return [pool for pool in found.values() if pool is not None]


def patch_pool(pool: Object, patch: list[Object], cluster: Cluster, *, others: bool) -> Object:
    """The pool once it has got its patch, if any.

    One that hangs, as behind a webhook, has half of the time that is left while there are `others`, so that they get
    their turn; else all but what recording needs, as it may be slow and no more. It is `Unavailable` then, and may be
    done all the same, or be done late: only to the pool as it was read. So it counts as not done, and whoever gets the
    event again reads the pool.
    """
    if not patch:
        return pool
    left = seconds_left()
    with within(left / 2 if others else max(left / 2, left - SECONDS_TO_RECORD)):
        return cluster.patch(pool_path(name_of(pool)), patch, JSON_PATCH)


def recorded(found: Ongoing, word: str, changed: Changed, verdict: Verdict, cluster: Cluster) -> Ongoing:
    """Record which pools are `paused` or `edited`, and where all are so the condition; the run as it is then.

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
    """Whether no run has the pool, and that of the event, which may have ended since, still has its pools.

    Runs are read after the pool, so one that has it is among them. One that is just claiming records that last: it has
    changed no pool yet, waits for its turn as any other does, and then claims what it has lost.
    """
    owner = claimed_by(pool)
    if owner and owner in claims.holders(cluster.run(lookup.runs(cluster.api, None))):
        return False
    found = read_under_way(event, cluster)
    return found is not None and found.stage is not Stage.DONE
