"""Label the nodes of a run, one label per rule; a labelled node is not upgraded (step 4, MUT-33, MUT-35, MUT-43).

A node whose write is rejected or hangs does not keep the other nodes from being labelled.

In: `pools.paused`. Out: `nodes.labelled`, or `pools.paused` if the time was too short for all nodes; no event while the
control plane is being upgraded, because its change triggers the step again.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutexrules get; nodes get, list, patch; clusterversions get.
"""

from __future__ import annotations

from contextlib import nullcontext

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import Ongoing, read_redoing
from functions.mutex.event_objects import Replies, now, telling, write_status
from functions.best_effort import raise_first
from kube.client.api import JSON_PATCH, absent_ok
from kube.client.api_errors import ApiError
from kube.client.deadline import has_time, seconds_left, within
from kube.client.sync_client import Cluster
from kube.mutex import lookup
from kube.mutex.node_labels import gate_patch, is_gated
from kube.mutex.objects import Verdict
from kube.mutex.run_record import Record, is_there, rules_of, unreleased
from kube.mutex.validation import control_plane_verdict, named, outside_verdict
from kube.mutex.versions import wanted
from kube.nodes import node_path
from kube.paths import Object
from kube.times import timestamp
from kube.text_limits import counted

CONSUMES = (events.POOLS_PAUSED,)
EMITS = (events.NODES_LABELLED, events.POOLS_PAUSED)
APPLIED = "MutexRulesApplied"
TOGETHER, SECONDS = 25, 0.5
"""Nodes patched concurrently, and the seconds that must remain before the next group starts."""


@telling(APPLIED, "ApplyFailed")
def label_nodes(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Label each unreleased node that lacks a label, and drop nodes that no longer exist from the run.

    The nodes are read before the record. If a node is released after that, its resourceVersion has changed, so its
    patch fails with a conflict.
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
    """Return whether labelling must wait for the control plane's upgrade, and report that in the condition.

    This applies only before the nodes are labelled: if the pools were paused early (C26), or if another version was
    requested while the run waited for other runs (MUT-32).
    """
    if found.record.get("labelledAt"):
        return False
    verdict = control_plane_verdict(wanted(cluster.run(lookup.cluster_version(cluster.api))))
    write_status(found.run, cluster, {}, [verdict])
    return not verdict.holds


def ungated(record: Record, cluster: Cluster) -> list[str]:
    """Return the unreleased nodes that lack a label, using one list request.

    Labelled nodes are skipped, so that each pass labels other nodes and a large run finishes.
    """
    listed = cluster.run(lookup.labelled_nodes(cluster.api, record["id"], None))
    gated = {node["metadata"]["uid"] for node in listed if is_gated(node, record["id"], rules_of(record))}
    return [name for name in unreleased(record) if record["nodes"][name]["uid"] not in gated]


def _label_all(names: list[str], event: BaseCloudEvent, cluster: Cluster) -> list[str] | None:
    """Label the nodes in groups; return those that no longer exist, or None if the time was too short for all.

    Raises the first error of a node once all nodes were tried or the time is over. Otherwise `pools.paused` would
    trigger the next pass at once. That pass would start with the same nodes, and repeat their errors as fast as events
    travel.
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
    """Label a group of nodes concurrently, and return those that no longer exist.

    The node whose Job may be running is not returned, because `run-job` drops it. While `others` follow, the writes may
    use half of the remaining time, so that a hanging write cannot block the others forever.
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
    """Return the condition that reports workers in no target, just before the canary is edited (MUT-38).

    Workers may have joined since the pools were claimed.
    """
    members = {node["uid"] for node in found.record["nodes"].values()}
    return outside_verdict(members, cluster.run(lookup.nodes(cluster.api, None)))


def _verdict(found: Ongoing, dropped: list[str]) -> Verdict:
    record = found.record
    said = f"{counted(len(record['order']), 'node')}, {counted(len(record['rules']), 'rule')}"
    return Verdict(APPLIED, True, "ApplySucceeded", f"{said}; gone: {named(dropped)}" if dropped else said)
