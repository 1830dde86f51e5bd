"""Pause the targets' pools, so that none of their nodes is upgraded before its Jobs (step 3, MUT-33, MUT-34).

Only one run pauses pools and upgrades nodes at a time, even if the pools differ (MUT-44). To take its turn, a run
writes `turnAt` to its record, and then checks all other runs again. If it sees that another run has taken the turn as
well, it withdraws. At the next tick, the run that began first takes the turn. A pool that cannot be written does not
keep the other pools from being paused.

In: `pools.claimed`. Out: `pools.paused`.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; machineconfigpools get, patch.
"""

from __future__ import annotations

from functools import partial

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import Ongoing, read_redoing
from functions.mutex.pool_patching import change_pools, recorded
from functions.mutex.event_objects import Replies, now, telling
from kube.client.sync_client import Cluster
from kube.mutex import claims, lookup
from kube.mutex.objects import Verdict
from kube.mutex.pools import name_of, pause_patch
from kube.mutex.run_record import Record, Stage
from kube.mutex.validation import named
from kube.paths import Object
from kube.times import timestamp

CONSUMES = (events.POOLS_CLAIMED,)
EMITS = (events.POOLS_PAUSED,)
PAUSED = "TargetPoolsPaused"


@telling(PAUSED, "NotPaused")
def pause_pools(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Pause each pool that is not paused, also after another client has unpaused it, even if the run is halted."""
    found = read_redoing(event, cluster, "pausedAt")
    if found is not None and found.stage is Stage.DONE:
        return []  # a late event: the pools are being restored
    if found is not None and not found.record.get("pausedAt"):
        found = _at_turn(found, cluster)
    if found is None:
        return []
    names = [*found.record["pools"], found.record["canary"]["name"]]  # the canary is claimed, but not paused
    changed = change_pools(found, names, partial(_paused, found.record), event, cluster)
    verdict = Verdict(PAUSED, True, "Paused", _said(found.record, changed.gone))
    found = recorded(found, "paused", changed, verdict, cluster)
    return found.answer_going_on(events.POOLS_PAUSED, "pause-pools", event)


def _paused(record: Record, pool: Object) -> list[Object]:
    return pause_patch(pool, paused=True) if name_of(pool) in record["pools"] else []


def _at_turn(found: Ongoing, cluster: Cluster) -> Ongoing | None:
    """Return the run once it has taken its turn, or None while other runs come first."""
    if others := claims.ahead(found.run, cluster.run(lookup.runs(cluster.api, None))):
        _wait(found, others, cluster)
        return None
    if not found.record.get("turnAt"):
        found = found.written(cluster, {"turnAt": timestamp(now())})
    if others := claims.at_turn(found.run, cluster.run(lookup.runs(cluster.api, None))):
        _wait(found, others, cluster)
        return None
    return found


def _wait(found: Ongoing, others: list[str], cluster: Cluster) -> None:
    """Report the runs that this run waits for, and clear `turnAt`; the next tick retries."""
    said = f"{named(others)} under way, and one run upgrades nodes at a time"
    found.written(cluster, {"turnAt": None}, Verdict(PAUSED, False, "NotPaused", said))


def _said(record: Record, gone: list[str]) -> str:
    before = [name for name, pool in record["pools"].items() if pool["paused"]]
    said = [f"paused before by somebody else: {named(before)}"] if before else []
    return "; ".join([*said, *([f"deleted since: {named(gone)}"] if gone else [])])
