"""Pause the pools of the targets, so that no node of theirs is upgraded before its Jobs (step 3, MUT-33, MUT-34).

One run at a time, whatever its pools (MUT-44): a run takes the turn by writing so, and looks again at all others. Of
two that take it at once neither goes on; at the next tick the one that began first does. A pool that is refused keeps
no other one from being paused.

In: `pools.claimed`. Out: `pools.paused`.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; machineconfigpools get, patch.
"""

from __future__ import annotations

from functools import partial

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.ongoing import Ongoing, read_redoing
from functions.mutex.pool_writing import change_pools, recorded
from functions.mutex.subject import Replies, now, telling
from kube.door.sync_client import Cluster
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
    """Pause each that is not; so it does again when somebody lets one go on amid the run, halted or not."""
    found = read_redoing(event, cluster, "pausedAt")
    if found is not None and found.stage is Stage.DONE:
        return []  # it comes late: the pools are being given back
    if found is not None and not found.record.get("pausedAt"):
        found = _at_turn(found, cluster)
    if found is None:
        return []
    names = [*found.record["pools"], found.record["canary"]["name"]]  # which is to be claimed, and not to be paused
    changed = change_pools(found, names, partial(_paused, found.record), event, cluster)
    verdict = Verdict(PAUSED, True, "Paused", _said(found.record, changed.gone))
    found = recorded(found, "paused", changed, verdict, cluster)
    return found.answer_going_on(events.POOLS_PAUSED, "pause-pools", event)


def _paused(record: Record, pool: Object) -> list[Object]:
    return pause_patch(pool, paused=True) if name_of(pool) in record["pools"] else []


def _at_turn(found: Ongoing, cluster: Cluster) -> Ongoing | None:
    """The run with its turn; None while others come before it."""
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
    """Say for whom, and leave the turn to them; the tick asks again."""
    said = f"{named(others)} under way, and one run upgrades nodes at a time"
    found.written(cluster, {"turnAt": None}, Verdict(PAUSED, False, "NotPaused", said))


def _said(record: Record, gone: list[str]) -> str:
    before = [name for name, pool in record["pools"].items() if pool["paused"]]
    said = [f"paused before by somebody else: {named(before)}"] if before else []
    return "; ".join([*said, *([f"deleted since: {named(gone)}"] if gone else [])])
