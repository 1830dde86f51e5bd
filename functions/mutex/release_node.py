"""Release a node for its upgrade: remove its labels when all of its Jobs are complete (step 6b, MUT-43, MUT-44).

The step first checks the pools and the canary, so that the node moves into the right pool (MUT-36). It also checks the
control plane, which may be updating to another version (MUT-32). It then writes the node's name into the record's field
`released`, which holds only one node, and removes the labels. A node under maintenance waits until the maintenance
ends, unless a Job of this run requested it.

In: `node.cleared`. Out: `node.released`; `pools.claimed` or `pools.paused` if another client changed a pool, but no
event if it did so again within ten seconds: then the condition reports it, and the tick retries.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutexrules get; machineconfigpools list; nodes get, patch;
clusterversions get; nodemaintenances list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import Ongoing, read_ongoing
from functions.mutex.event_objects import Replies, log_about, now, telling
from kube.client.api import JSON_PATCH, absent_ok
from kube.client.sync_client import Cluster
from kube.mutex import claims, lookup, maintainers, versions
from kube.mutex.node_labels import is_released, release_patch, run_of
from kube.mutex.objects import RUN_LABEL, Verdict
from kube.mutex.pools import is_paused
from kube.mutex.run_record import Record, Stage, is_there
from kube.mutex.validation import UPGRADE, WAITING, control_plane_verdict, named
from kube.nodes import node_path
from kube.paths import Object
from kube.times import timestamp

CONSUMES = (events.NODE_CLEARED,)
EMITS = (events.NODE_RELEASED, events.POOLS_CLAIMED, events.POOLS_PAUSED)


class Change(NamedTuple):
    """A required change of the pools: its word in the record, the check for it, and the event that repeats it."""

    word: str
    are_so: Callable[[Record, Mapping[str, Object]], bool]
    kind: str


CHANGES = (
    Change("paused", claims.are_paused, events.POOLS_CLAIMED),
    Change("edited", claims.are_edited, events.POOLS_PAUSED),
)
"""The changes that must be in place before a release.

Selectors that another client has changed are repaired from the labelling step on, because labels may be missing as
well.
"""


@telling(UPGRADE, "NodeUpgradeFailed")
def release_node(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Remove all rule labels from the run's current node in one patch."""
    found = read_ongoing(event, cluster)
    if found is None or found.stage not in (Stage.CLEARED, Stage.RELEASED):
        return []
    if found.stage is Stage.RELEASED:
        return found.answer(events.NODE_RELEASED, "release-node", event, node=found.node)  # it is already released
    name, api = found.node, cluster.api
    node, pools, version = cluster.together(
        absent_ok(api.get(node_path(name))), lookup.pools(api, None), lookup.cluster_version(api)
    )
    if not is_there(node, found.record, name):
        return found.answer(events.NODE_RELEASED, "release-node", event, node=name)  # await-version drops it
    for change in CHANGES:
        if not change.are_so(found.record, pools):
            return _done_again(found, change, pools, event, cluster)
    wanted = versions.wanted(version)
    ready = control_plane_verdict(wanted)
    if said := _no_canary(found, pools) or _hindrance(found, node, wanted, cluster):
        found.written(cluster, {}, _waiting(found, said), ready)
        return []
    return _release(found, node, ready, event, cluster)


def _done_again(
    found: Ongoing, change: Change, pools: Mapping[str, Object], event: BaseCloudEvent, cluster: Cluster
) -> Replies:
    """Return the event that repeats a change of the pools that another client has undone.

    If that change was already repeated within the last ten seconds, the function only reports the conflict in the
    condition.
    """
    if not change.are_so(found.record, claims.at_rest(found.record, change.word, pools, now())):
        return found.answer(change.kind, "release-node", event)
    names = [name for name, pool in pools.items() if not change.are_so(found.record, {name: pool})]
    said = f"somebody changes the MachineConfigPool {named(names)} back whenever it is {change.word}: keep him off it"
    found.written(cluster, {}, _waiting(found, said))
    return []


def _waiting(found: Ongoing, said: str) -> Verdict:
    return Verdict(UPGRADE, False, WAITING, f"{found.at(found.node)}, {found.node}: {said}")


def _no_canary(found: Ongoing, pools: Mapping[str, Object]) -> str:
    """Return why the canary would not upgrade a node that is released now, "" if it would.

    The condition ConfigValidated may not reflect the canary's latest change yet.
    """
    name = found.record["canary"]["name"]
    if name not in pools:
        return f"there is no MachineConfigPool {name}, the canary, any more"
    return f"the MachineConfigPool {name}, the canary, is paused" if is_paused(pools[name]) else ""


def _hindrance(found: Ongoing, node: Object, wanted: versions.Wanted, cluster: Cluster) -> str:
    """Return why the node must not be released now, "" if it may be."""
    if not wanted.version:
        return "the ClusterVersion wants no version any more"
    if wanted.hindrance and not (is_released(node) and found.record.get("released") == found.node):
        return wanted.hindrance  # the desired version has changed; the control plane is updated before the nodes
    if not is_released(node) and (other := run_of(node)) not in ("", found.record["id"]):
        return f"its label {RUN_LABEL} names another run, {other}"
    return maintainers.hindrance(node, cluster.run(lookup.maintainer(cluster.api, node)), found.record["id"])


def _release(found: Ongoing, node: Object, ready: Verdict, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    name = found.node
    if found.record.get("released") not in (None, name):
        return []
    if found.record.get("released") is None:
        found = found.written(cluster, {"released": name}, ready)
    if not is_released(node):
        cluster.patch(node_path(name), release_patch(node, found.record["id"]), JSON_PATCH)
        log_about(f"node {name} is released", found.run)
    found = found.written(cluster, {"nodes": {name: {"releasedAt": timestamp(now())}}})
    return found.answer(events.NODE_RELEASED, "release-node", event, node=name)
