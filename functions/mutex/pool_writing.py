"""Writes MachineConfigPools that a run has claimed, one after another: what is read is what is written.

A pool whose claim was lost, since somebody replaced it by its own file or by a backup with the claim of a run config
that is gone or has no run under way, is claimed again in the same write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from functions.mutex.ongoing import Ongoing, read_under_way
from kube.door.api import JSON_PATCH, absent_ok
from kube.door.api_errors import Denied
from kube.door.sync_client import Cluster
from kube.mutex import claims, lookup
from kube.mutex.pools import claim_patch, claimed_by, pool_path
from kube.mutex.run_record import Stage, uid_of
from kube.paths import Object

Patch = Callable[[Object], list[Object]]


class Changed(NamedTuple):
    """The names of the pools that got their patch, of those that were claimed again, and of those that are gone."""

    written: list[str]
    claimed: list[str]
    gone: list[str]


def change_pools(
    found: Ongoing, names: Iterable[str], patch: Patch, event: BaseCloudEvent, cluster: Cluster
) -> Changed:
    """Send each pool its patch, if any.

    Raises `Denied` for a pool that is not the run's any more, `Conflict` when somebody writes it meanwhile.
    """
    uid = uid_of(found.record)
    changed = Changed([], [], [])
    for name in names:
        pool = cluster.run(absent_ok(cluster.api.get(pool_path(name))))
        if pool is None:
            changed.gone.append(name)
            continue
        if claimed_by(pool) != uid and not _may_claim(pool, event, cluster):
            raise Denied(403, f"the MachineConfigPool {name} is not claimed by this run any more")
        claim, change = claim_patch(pool, uid), patch(pool)
        if claim or change:
            cluster.patch(pool_path(name), [*claim, *change], JSON_PATCH)
        changed.claimed.extend([name] if claim else [])
        changed.written.extend([name] if change else [])
    return changed


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
