"""Label the nodes of a run, one label for each rule: with it a node is not upgraded (step 4, MUT-33, MUT-35, MUT-43).

A node that is refused, or whose write hangs, keeps no other one from being labelled.

In: `pools.paused`. Out: `nodes.labelled`, or `pools.paused` when there was no time for all; nothing while the control
plane is still being upgraded, whose change comes as an event.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutexrules get; nodes get, list, patch; clusterversions get.
"""

from __future__ import annotations

from contextlib import nullcontext

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.ongoing import Ongoing, read_redoing
from functions.mutex.subject import Replies, now, telling, write_status
from functions.trying import raise_first
from kube.door.api import JSON_PATCH, absent_ok
from kube.door.api_errors import ApiError
from kube.door.deadline import has_time, seconds_left, within
from kube.door.sync_client import Cluster
from kube.mutex import lookup
from kube.mutex.node_labels import gate_patch, is_gated
from kube.mutex.objects import Verdict
from kube.mutex.run_record import Record, is_there, rules_of, unreleased
from kube.mutex.validation import control_plane_verdict, named, outside_verdict
from kube.mutex.versions import wanted
from kube.nodes import node_path
from kube.paths import Object
from kube.times import timestamp
from kube.words import counted

CONSUMES = (events.POOLS_PAUSED,)
EMITS = (events.NODES_LABELLED, events.POOLS_PAUSED)
APPLIED = "MutexRulesApplied"
TOGETHER, SECONDS = 25, 0.5
"""So many nodes at once, while there is so much time left for the next ones."""


@telling(APPLIED, "ApplyFailed")
def label_nodes(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Label each node that lacks one and is not released; nodes that are gone are dropped from the run.

    The nodes are read before the record: a node that is released after that has another version, and is left alone.
    """
    found = read_redoing(event, cluster, "labelledAt")
    if found is None or not found.record.get("pausedAt") or _awaits_control_plane(found, cluster):
        return []
    dropped = _label_all(ungated(found.record, cluster), event, cluster)
    if dropped is None:
        return found.answer(events.POOLS_PAUSED, "label-nodes", event)
    found = read_redoing(event, cluster, "labelledAt")
    if found is None:
        return []
    nodes = {name: {"droppedAt": timestamp(now())} for name in dropped}
    change: Object = {"nodes": nodes} if nodes else {}
    verdicts = [_verdict(found, dropped)]
    if not found.record.get("labelledAt"):
        change |= {"labelledAt": timestamp(now())}
        verdicts.append(_outside(found, cluster))
    found = found.written(cluster, change, *verdicts)
    return found.answer_going_on(events.NODES_LABELLED, "label-nodes", event)


def _awaits_control_plane(found: Ongoing, cluster: Cluster) -> bool:
    """Whether no node is labelled yet and the control plane is being upgraded; the condition says so.

    Pools were paused early (C26), or the run has waited for its turn, and another version is wanted since (MUT-32).
    """
    if found.record.get("labelledAt"):
        return False
    verdict = control_plane_verdict(wanted(cluster.run(lookup.cluster_version(cluster.api))))
    write_status(found.run, cluster, {}, [verdict])
    return not verdict.holds


def ungated(record: Record, cluster: Cluster) -> list[str]:
    """The unreleased nodes that lack a label, by one list: each turn labels others, so that many come to an end."""
    listed = cluster.run(lookup.labelled_nodes(cluster.api, record["id"], None))
    gated = {node["metadata"]["uid"] for node in listed if is_gated(node, record["id"], rules_of(record))}
    return [name for name in unreleased(record) if record["nodes"][name]["uid"] not in gated]


def _label_all(names: list[str], event: BaseCloudEvent, cluster: Cluster) -> list[str] | None:
    """Label nodes, some at a time; those that are gone, None when there was no time for all.

    Raises the first error of a node when all are tried, or no time is left: what is refused comes first in the next
    turn, too, which would follow as fast as events travel.
    """
    gone, errors = list[str](), list[ApiError]()
    for start in range(0, len(names), TOGETHER):
        if start and not has_time(SECONDS):
            raise_first(errors)
            return None
        some, others = names[start : start + TOGETHER], start + TOGETHER < len(names)
        try:
            gone += _label(some, event, cluster, others=others)
        except ApiError as error:
            errors.append(error)
    raise_first(errors)
    return gone


def _label(names: list[str], event: BaseCloudEvent, cluster: Cluster, *, others: bool) -> list[str]:
    """Label some nodes side by side; those that are gone, but for the one whose Job may run: `run-job` drops it.

    Writes have half of the time that is left while `others` follow, which one that hangs would keep waiting for ever.
    """
    nodes = cluster.together(*(absent_ok(cluster.api.get(node_path(name))) for name in names))
    found = read_redoing(event, cluster, "labelledAt")
    if found is None:
        return []
    record, still = found.record, set(unreleased(found.record))
    there = {name: node for name, node in zip(names, nodes, strict=True) if is_there(node, record, name)}
    patches = {name: gate_patch(node, record["id"], rules_of(record)) for name, node in there.items() if name in still}
    with within(seconds_left() / 2) if others else nullcontext():
        cluster.together(
            *(cluster.api.patch(node_path(name), patch, JSON_PATCH) for name, patch in patches.items() if patch)
        )
    at_work = found.node if record.get("editedAt") else ""
    return [name for name in names if name in still and name not in {*there, at_work}]


def _outside(found: Ongoing, cluster: Cluster) -> Verdict:
    """Who is in no target now, as the canary is about to be edited: some may have come since the claim (MUT-38)."""
    members = {node["uid"] for node in found.record["nodes"].values()}
    return outside_verdict(members, cluster.run(lookup.nodes(cluster.api, None)))


def _verdict(found: Ongoing, dropped: list[str]) -> Verdict:
    record = found.record
    said = f"{counted(len(record['order']), 'node')}, {counted(len(record['rules']), 'rule')}"
    return Verdict(APPLIED, True, "ApplySucceeded", f"{said}; gone: {named(dropped)}" if dropped else said)
