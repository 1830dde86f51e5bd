"""Evict pods for up to a second and report blocked ones; never wait for pods to end (NMO-5 to NMO-9, design rule 3).

In: `node.tainted`, `budget.opened`, `pods.came`, `launchers.changed`, `pods.gone` and `pods.evicted` flagged `more`.
Out: `pods.evicted`, `node.drained`, `node.drifted`.
Touches: nodemaintenances get; nodes get; pods get, list; pods/eviction create; poddisruptionbudgets list;
daemonsets get; leases get in medik8s-leases.
With `spec.drain.disableEviction`, the step deletes pods instead; only the component `deleting` grants that right.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events, replay_extensions
from functions.event_data import data_of, version_of
from functions.failures import Failed
from functions.installs import acts
from functions.maintenance.eviction_reports import SPOKEN_OF, LateEvictions, LookingAtPods, tell, told_blocked
from functions.maintenance.event_objects import active, node_of, reference_of
from kube.budgets import AT_WORK, Blocked, identity, plan
from kube.client.api import Api
from kube.client.eviction_batch import budgets_over, evict_batches, granted_late, orphans
from kube.client.paging import Listed
from kube.client.sync_client import Cluster
from kube.evictions import Batch
from kube.evacuation_requests import request, worded
from kube.maintenance import drain_flags, eviction_backoff
from kube.maintenance.blocked_pods import summary
from kube.maintenance.lookup import pods_on_node
from kube.maintenance.objects import Maintenance, group, is_told_drained
from kube.maintenance.node_snapshot import Looked
from kube.nodes import Node, is_closed
from kube.paths import Object
from kube.pods import DrainOptions, Sorted, is_terminating, uid

CONSUMES = events.FLAGS["more"]
EMITS = (events.PODS_EVICTED, events.NODE_DRAINED, events.NODE_DRIFTED)
OTHERS = (*SPOKEN_OF, events.LAUNCHERS_CHANGED)
"""Events that report changes of pods and budgets; the other events come from the chain and concern the node."""
LOOKING, LATE = LookingAtPods(), LateEvictions()
NO_TIME = "its turn did not come: the API server is slow, or asked for a pause"
LAST = "it runs evict, and goes when the evictions that it has sent from other nodes are answered"


def evict(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Evict the pods that may leave the node now, and report the rest; return `node.drained` if no pod is left.

    If the node is not cordoned and tainted, the function evicts nothing, and an event of the chain gives
    `node.drifted`. Raises `Failed` if the node drifts again right after that repair; the tick then repairs it (rule 9).
    Also raises `Failed` if the node no longer exists.
    """
    if not acts(cluster):
        return []
    found = cluster.run(_read(cluster.api, event))
    if found is None:
        return []
    maintenance, node, listed = found
    reference, name = reference_of(event), node["metadata"]["name"]
    if not is_closed(node, group(maintenance).drain_taint):
        if event.get_type() in OTHERS:
            return []  # `guard` repairs the node; while `guard` backs off, the tick does so
        if data_of(event).get("again"):
            raise Failed(f"node {name} was cordoned and tainted twice, and is not: somebody undoes it at once")
        data = {"message": f"node {name} is not cordoned and tainted any more", "again": True}
        return [events.event(events.NODE_DRIFTED, "evict", reference, name, cause=event, data=data)]
    options = drain_flags.options_of(maintenance)
    pods, budgets, version = cluster.run(_waiting(cluster.api, name, event, listed, options))
    if not pods.leaving:
        late = Batch(evicted=[] if replay_extensions.is_replay(event) else cluster.run(granted_late(cluster.api, name)))
        if is_told_drained(maintenance) and not late.evicted:
            return []  # a late hint: the status reports the drained node already
        tell(maintenance, late, event)
        told = {"evicted": late.evicted} if late.evicted else {}
        data = {**told, "podsVersion": version, **Looked.at(maintenance, is_closed=True).as_data()}
        return [events.event(events.NODE_DRAINED, "evict", reference, name, cause=event, data=data)]
    now = datetime.now(timezone.utc)
    due, resting = eviction_backoff.parted(drain_flags.going(pods, options), maintenance, now)
    planned, is_tick = plan(due, budgets.items, options), event.get_type() == events.NODE_TAINTED
    requested = request(planned, due, lambda item: is_tick or not eviction_backoff.was_blocked(item, maintenance))
    host = os.environ.get("HOSTNAME", "")  # the name of the pod that runs this process
    sending = evict_batches(cluster.api, planned, due, node=name, host=host, own_only=replay_extensions.is_replay(event))
    batch = cluster.run(sending)
    if batch.under_way and not replay_extensions.is_dry_run(event):
        LATE.expect(event, maintenance, cluster)
    batch.blocked = worded(batch.blocked, requested)
    more = _more(batch, maintenance, host)
    dated = eviction_backoff.dated(batch.blocked, maintenance, now)
    batch.blocked = [*dated, *resting, *drain_flags.refused(pods, options)]
    tell(maintenance, batch, event)
    flags = ("more",) if more else ()
    gone = {pod["uid"] for pod in batch.gone}
    left = [pod for pod in pods.leaving if uid(pod) not in gone]
    data = {**_data(batch, version, budgets.version), **Looked.at(maintenance, is_closed=True, left=left).as_data()}
    return [events.event(events.PODS_EVICTED, "evict", reference, name, cause=event, data=data, flags=flags)]


async def _read(api: Api, event: BaseCloudEvent) -> tuple[Maintenance, Node, Listed] | None:
    """Read the maintenance, its node and the node's pods concurrently; return None if the maintenance is not active.

    The pods are at least as new as the `podsVersion` of the event. If the maintenance is not active, an error of the
    pod list is ignored.
    """
    listing = pods_on_node(api, node_of(event), version_of(event, "podsVersion") or "0")
    found, listed = await asyncio.gather(active(event, api), listing, return_exceptions=True)
    if isinstance(found, BaseException):
        raise found
    if found is None:
        return None
    if isinstance(listed, BaseException):
        raise listed
    return *found, listed


async def _waiting(
    api: Api, node: str, event: BaseCloudEvent, listed: Listed, options: DrainOptions
) -> tuple[Sorted, Listed, str]:
    """Return the classified pods of the node, the budgets over them, and the resourceVersion of the pod list.

    The budgets are at least as new as the `budgetsVersion` of the event.
    """
    claimed = event.get_type() == events.PODS_GONE and bool(version_of(event, "podsVersion"))
    found, version = await told_apart(api, node, listed, options, claimed=claimed)
    waiting = [pod for pod in drain_flags.going(found, options) if not is_terminating(pod)]
    budgets = await budgets_over(api, waiting, version_of(event, "budgetsVersion") or "0")
    return found, budgets, version


async def told_apart(
    api: Api, node: str, listed: Listed, options: DrainOptions, *, claimed: bool
) -> tuple[Sorted, str]:
    """Classify the pods of the node, and return them with the resourceVersion of their list.

    If no pod is left, the function verifies that with a second list in the newest state. With `claimed`, it does not:
    the first list is then at least as new as the state in which the last pod was gone. Orphaned DaemonSet pods are
    identified last, once no other pod can be evicted.
    """
    now = datetime.now(timezone.utc)
    found = drain_flags.sorted_for(listed.items, options, now)
    if not found.leaving and not claimed:
        listed = await pods_on_node(api, node)
        found = drain_flags.sorted_for(listed.items, options, now)
    if found.daemons and not drain_flags.going(found, options):
        found = drain_flags.sorted_for(listed.items, options, now, await orphans(api, found.daemons))
    return found, listed.version


def _more(batch: Batch, maintenance: Maintenance, host: str = "") -> bool:
    """Return whether another pass should follow at once, for undecided or deferred pods after progress (rule 9).

    Without progress, those pods count as blocked; so do undecided pods that the status already reports as blocked.
    Updates `batch.blocked` accordingly. `host` is the name of the pod that runs this process.
    """
    undecided = [item for item in batch.blocked if item.reason in eviction_backoff.UNDECIDED]
    if not (batch.evicted or batch.gone or batch.under_way):
        for pod in batch.unsent:
            message = LAST if pod["metadata"]["name"] == host else NO_TIME
            batch.blocked.append(Blocked(identity(pod), "NoTime", message))
        return False
    new = [item for item in undecided if not eviction_backoff.was_blocked(item, maintenance)]
    batch.blocked = [item for item in batch.blocked if item not in new]
    return bool(new or batch.unsent)


def _data(batch: Batch, version: str, budgets: str) -> Object:
    error = summary(item for item in batch.blocked if item.reason not in AT_WORK)
    return {
        "evicted": batch.evicted,
        **told_blocked([item.as_data() for item in batch.blocked], error),
        "podsVersion": version,
        **({"budgetsVersion": budgets} if budgets else {}),
    }
