"""Await a released node's upgrade: it is complete once the node's version label has the desired version (MUT-45).

The step does not block: an update of the node triggers it, by reference. If that event was lost, the tick triggers it.
`MUTEX_UPGRADE_SECONDS` (6000) limits the time for a released node's upgrade. While no version is desired, or the
control plane is updating to another version, the node is on hold. The record stores that as `heldAt`. After the hold
the node has its full time again.

In: `node.released`; an updated Node, by reference. Out: `node.upgraded`; `node.cleared` if another client labelled the
node again, but no event if that was within ten seconds of its release: then the condition reports it, and the tick
retries; `node.cleaned` if the node no longer exists; `run.stopped` if the upgrade takes too long.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; nodes get; clusterversions get;
events create in node-upgrade-mutex-operator.
"""

from __future__ import annotations

import os

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import Ongoing, hinted, ongoing, patience
from functions.mutex.event_objects import Replies, announce, log_about, now, telling
from kube.client.api import absent_ok
from kube.client.sync_client import Cluster
from kube.mutex import lookup, run_changes, run_record, versions
from kube.mutex.node_labels import is_released
from kube.mutex.objects import Verdict
from kube.mutex.run_record import Stage, is_there
from kube.mutex.validation import HELD, UPGRADE, WAITING
from kube.nodes import node_path
from kube.paths import Object
from kube.times import timestamp

CONSUMES = (events.NODE_RELEASED, events.REFERENCE_UPDATED)
EMITS = (events.NODE_UPGRADED, events.NODE_CLEARED, events.NODE_CLEANED, events.RUN_STOPPED)
STOPPED = "UpgradeStopped"


@telling(UPGRADE, "NodeUpgradeFailed")
def await_version(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Check the released node's progress. The live ClusterVersion decides, not the version that the run began with."""
    found = ongoing(hinted(event, "Node", cluster), cluster)
    if found is None or not found.node or found.stage not in (Stage.CLEARED, Stage.RELEASED):
        return []
    name, api = found.node, cluster.api
    node, version = cluster.together(absent_ok(api.get(node_path(name))), lookup.cluster_version(api))
    if not is_there(node, found.record, name):
        change = run_changes.over(found.record, name, "droppedAt", now())
        verdict = Verdict(UPGRADE, True, "NodeDropped", f"{found.at(name)}, {name}: gone, so it is none of the run's")
        return found.written(cluster, change, verdict).answer(events.NODE_CLEANED, "await-version", event, node=name)
    if found.stage is not Stage.RELEASED:
        return []
    if not is_released(node):
        return _labelled_again(found, event, cluster)
    return _judged(found, node, versions.wanted(version), event, cluster)


def _labelled_again(found: Ongoing, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Let `release-node` release the node again after another client added rule labels.

    If the release was less than ten seconds ago, another client labels the node repeatedly. The function then only
    reports that in the condition, and the tick retries.
    """
    name = found.node
    change: Object = {"nodes": {name: {"releasedAt": None, "heldAt": None}}}
    if not run_record.is_fresh(found.record["nodes"][name].get("releasedAt"), now()):
        return found.written(cluster, change).answer(events.NODE_CLEARED, "await-version", event, node=name)
    said = f"{found.at(name)}, {name}: somebody labels the node again whenever it is released: keep him off it"
    found.written(cluster, change, Verdict(UPGRADE, False, WAITING, said))
    return []


def _judged(found: Ongoing, node: Object, wanted: versions.Wanted, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    name, reached = found.node, versions.version_of(node)
    where = f"{found.at(name)}, {name}"
    if reached and reached == wanted.version:
        log_about(f"node {name} is at {reached}", found.run)
        upgraded = {"upgradedAt": timestamp(now()), "heldAt": None}
        change = {"desired": _reached_by_all(found, reached), "nodes": {name: upgraded}}
        verdict = Verdict(UPGRADE, True, "NodeUpgradeSucceeded", f"{where}: at {reached}")
        return found.written(cluster, change, verdict).answer(events.NODE_UPGRADED, "await-version", event, node=name)
    said = f"{where}: at {reached or 'no version'}, {_awaited(reached, wanted)}"
    known = found.record["nodes"][name]
    released, held = known.get("releasedAt"), known.get("heldAt")
    if not (wanted.hindrance or held) and run_record.seconds_since(released, now()) >= patience(os.environ):
        return _stop(found, f"{said}; released at {released}, and out of patience", event, cluster)
    reason = HELD if wanted.hindrance else WAITING
    found.written(cluster, _hold(found, is_held=bool(wanted.hindrance)), Verdict(UPGRADE, False, reason, said))
    return []


def _hold(found: Ongoing, *, is_held: bool) -> Object:
    """Return the change that puts the released node on hold or restarts its time limit; {} if nothing changes."""
    if is_held is bool(found.record["nodes"][found.node].get("heldAt")):
        return {}
    moment = timestamp(now())
    return {"nodes": {found.node: {"heldAt": moment} if is_held else {"heldAt": None, "releasedAt": moment}}}


def _reached_by_all(found: Ongoing, reached: str) -> str:
    """Return the oldest version that an upgraded node of the run has.

    The run counts as finished for that version, and for no newer one.
    """
    are_others = any(node.get("upgradedAt") for node in found.record["nodes"].values())
    return min(found.record["desired"], reached, key=versions.key) if are_others else reached


def _awaited(reached: str, wanted: versions.Wanted) -> str:
    if not wanted.version:
        return "and the ClusterVersion wants no version any more"
    is_above = versions.is_version(reached) and versions.is_less(wanted.version, reached)
    said = f"{'above' if is_above else 'not yet'} {wanted.version}"
    return f"{said}: {wanted.hindrance}" if wanted.hindrance else said


def _stop(found: Ongoing, said: str, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    stopped = run_changes.failure(found.run, "await-version", said, node=found.node, now=now())
    found = found.written(cluster, stopped, Verdict(UPGRADE, False, "NodeUpgradeFailed", said))
    announce(found.run, STOPPED, said, cluster)
    return found.answer(events.RUN_STOPPED, "await-version", event, node=found.node, error=said)
