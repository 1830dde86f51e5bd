"""Evict pods for up to a second and report blocked ones; never wait for termination (NMO-5 to NMO-9, design rule 3).

In: `node.tainted`, `budget.opened`, `pods.added`, `virt_launchers.wait_changed`; `pods.gone` and `pods.evicted` flagged
`more`.
Out: `pods.evicted`, `node.drained`, `node.drifted`.
Touches: nodemaintenances get; nodes get; pods get, list; pods/eviction create; poddisruptionbudgets list;
daemonsets get; leases get in medik8s-leases.
With `spec.drain.disableEviction`, the step deletes pods instead; only the component `deleting` grants that permission.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events, replay_extensions
from functions.event_data import parse_resource_version, require_data
from functions.failures import Failed
from functions.installs import is_active_install
from functions.maintenance.event_objects import (
    build_step_failed,
    fetch_active_maintenance,
    parse_node_name,
    parse_reference,
)
from functions.maintenance.eviction_reports import (
    HINT_VERSION_FIELDS,
    LateEvictions,
    PodHintPolicy,
    build_blocked_data,
    report_batch,
)
from functions.steps import step
from kube.budgets import PROGRESSING_REASONS, BlockedPod, build_object_reference, plan_evictions
from kube.client.api import Api
from kube.client.eviction_batch import evict_batches, find_orphan_uids, list_covering_budgets, take_late_evictions
from kube.client.paging import ListResult
from kube.client.sync_client import SyncClient
from kube.evacuation_requests import add_evacuation_requests, replace_expected_refusals
from kube.evictions import EvictionResult
from kube.maintenance import drain_flags, eviction_backoff
from kube.maintenance.blocked_pods import format_summary
from kube.maintenance.lookup import list_pods_on_node
from kube.maintenance.node_snapshot import StepSnapshot
from kube.maintenance.objects import Maintenance, get_group, is_reported_drained
from kube.nodes import Node, is_cordoned_and_tainted
from kube.paths import Object
from kube.pods import DrainOptions, PodClassification, get_uid, is_terminating

HINT_TYPES = (*HINT_VERSION_FIELDS, events.VIRT_LAUNCHERS_WAIT_CHANGED)
"""Types of the events that report changes of pods and budgets; events of other types report the node's state."""
LATE_EVICTIONS = LateEvictions()
NO_TIME_MESSAGE = "not evicted yet: the API server is slow, or asked clients to wait"
OWN_POD_MESSAGE = "the pod runs the function evict: it is evicted once its evictions on other nodes have a response"


@step(
    "evict",
    consumes=events.TYPES_BY_FLAG["more"],
    emits=(events.PODS_EVICTED, events.NODE_DRAINED, events.NODE_DRIFTED),
    on_failure=build_step_failed,
    coalescing=PodHintPolicy(),
    late_replies=LATE_EVICTIONS,
    requires_signature=True,
)
def evict(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Evict the pods that may leave the node now, and report the blocked ones; return `node.drained` if no pod is left.

    If the node is not cordoned and tainted, the function evicts nothing. For an event of the chain, it then returns
    `node.drifted`, so that the node is repaired. Raises `Failed` if the node no longer exists, or if it drifts again
    right after the repair; the next repair is the tick's (rule 9).
    """
    if not is_active_install(client):
        return []
    state = client.run(_read_state(client.api, event))
    if state is None:
        return []
    maintenance, node, listed = state
    reference, name = parse_reference(event), node["metadata"]["name"]
    if not is_cordoned_and_tainted(node, get_group(maintenance).drain_taint):
        if event.get_type() in HINT_TYPES:
            return []  # `guard` repairs the node; while `guard` backs off, the tick repairs it.
        if require_data(event).get("again"):
            raise Failed(
                f'node "{name}": another client reverted the cordon or the taint twice; retrying at the next tick'
            )
        data = {"message": f'node "{name}" is no longer cordoned and tainted', "again": True}
        return [events.build_event(events.NODE_DRIFTED, "evict", reference, name, cause=event, data=data)]
    options = drain_flags.parse_drain_options(maintenance)
    pods, budgets, version = client.run(_read_pods_and_budgets(client.api, name, event, listed, options))
    if not pods.leaving:
        late_batch = EvictionResult(
            evicted=[] if replay_extensions.is_replay(event) else client.run(take_late_evictions(client.api, name))
        )
        if is_reported_drained(maintenance) and not late_batch.evicted:
            return []  # The event is late: the status already reports the node as drained.
        report_batch(maintenance, late_batch, event)
        evicted = {"evicted": late_batch.evicted} if late_batch.evicted else {}
        data = {
            **evicted,
            "podsVersion": version,
            **StepSnapshot.from_maintenance(maintenance, is_cordoned_and_tainted=True).as_data(),
        }
        return [events.build_event(events.NODE_DRAINED, "evict", reference, name, cause=event, data=data)]
    now = datetime.now(timezone.utc)
    due, backing_off = eviction_backoff.split_due_pods(
        drain_flags.select_evictable_pods(pods, options), maintenance, now
    )
    planned, is_tick = plan_evictions(due, budgets.items, options), event.get_type() == events.NODE_TAINTED
    requested = add_evacuation_requests(
        planned, due, lambda item: is_tick or not eviction_backoff.was_blocked(item, maintenance)
    )
    own_pod_name, is_replay = os.environ.get("HOSTNAME", ""), replay_extensions.is_replay(event)
    eviction = evict_batches(
        client.api, planned, due, node_name=name, own_pod_name=own_pod_name, ignore_other_batches=is_replay
    )
    batch = client.run(eviction)
    if batch.in_flight and not replay_extensions.is_dry_run(event):
        LATE_EVICTIONS.track_pass(event, maintenance, client)
    batch.blocked = replace_expected_refusals(batch.blocked, requested)
    needs_another_pass = _update_blocked_pods(batch, maintenance, own_pod_name)
    newly_blocked = eviction_backoff.add_retry_after(batch.blocked, maintenance, now)
    batch.blocked = [*newly_blocked, *backing_off, *drain_flags.find_pods_blocked_by_flags(pods, options)]
    report_batch(maintenance, batch, event)
    flags = ("more",) if needs_another_pass else ()
    gone_uids = {pod["uid"] for pod in batch.already_gone}
    leaving = [pod for pod in pods.leaving if get_uid(pod) not in gone_uids]
    data = {
        **_build_evicted_data(batch, version, budgets.resource_version),
        **StepSnapshot.from_maintenance(maintenance, is_cordoned_and_tainted=True, leaving=leaving).as_data(),
    }
    return [events.build_event(events.PODS_EVICTED, "evict", reference, name, cause=event, data=data, flags=flags)]


async def _read_state(api: Api, event: BaseCloudEvent) -> tuple[Maintenance, Node, ListResult] | None:
    """Read the maintenance, its node and the node's pods concurrently; return None if the maintenance is not active.

    The pods are at least as new as the event's `podsVersion`. If the maintenance is not active, an error in listing the
    pods is ignored.
    """
    listing = list_pods_on_node(api, parse_node_name(event), parse_resource_version(event, "podsVersion") or "0")
    active, listed = await asyncio.gather(fetch_active_maintenance(event, api), listing, return_exceptions=True)
    if isinstance(active, BaseException):
        raise active
    if active is None:
        return None
    if isinstance(listed, BaseException):
        raise listed
    return *active, listed


async def _read_pods_and_budgets(
    api: Api, node: str, event: BaseCloudEvent, listed: ListResult, options: DrainOptions
) -> tuple[PodClassification, ListResult, str]:
    """Return the node's classified pods, the budgets that cover them, and the resourceVersion of the pod list.

    The budgets are at least as new as the event's `budgetsVersion`.
    """
    is_fresh = event.get_type() == events.PODS_GONE and bool(parse_resource_version(event, "podsVersion"))
    pods, version = await classify_node_pods(api, node, listed, options, is_fresh=is_fresh)
    evictable = [pod for pod in drain_flags.select_evictable_pods(pods, options) if not is_terminating(pod)]
    budgets = await list_covering_budgets(api, evictable, parse_resource_version(event, "budgetsVersion") or "0")
    return pods, budgets, version


async def classify_node_pods(
    api: Api, node: str, listed: ListResult, options: DrainOptions, *, is_fresh: bool
) -> tuple[PodClassification, str]:
    """Classify the pods on the node, and return them with the resourceVersion of their list.

    If no pod is left, the function verifies that with a second list of the newest state. If `is_fresh` is true, the
    second list is not necessary: `listed` is at least as new as the deletion of the last pod. Orphaned DaemonSet pods
    are identified last, once no other pod can be evicted.
    """
    now = datetime.now(timezone.utc)
    pods = drain_flags.classify_for_drain(listed.items, options, now)
    if not pods.leaving and not is_fresh:
        listed = await list_pods_on_node(api, node)
        pods = drain_flags.classify_for_drain(listed.items, options, now)
    if pods.daemonset_pods and not drain_flags.select_evictable_pods(pods, options):
        pods = drain_flags.classify_for_drain(
            listed.items, options, now, await find_orphan_uids(api, pods.daemonset_pods)
        )
    return pods, listed.resource_version


def _update_blocked_pods(batch: EvictionResult, maintenance: Maintenance, own_pod_name: str = "") -> bool:
    """Update `batch.blocked`, and return whether another pass should follow immediately (rule 9).

    If the batch made progress, another pass retries the deferred pods, and the pods whose eviction failed without a
    refusal. Without progress, these pods count as blocked. So do pods that the status already reports as blocked.
    `own_pod_name` is the name of the pod that runs this process.
    """
    undecided = [item for item in batch.blocked if item.reason in eviction_backoff.UNDECIDED_REASONS]
    if not (batch.evicted or batch.already_gone or batch.in_flight):
        for pod in batch.deferred:
            message = OWN_POD_MESSAGE if pod["metadata"]["name"] == own_pod_name else NO_TIME_MESSAGE
            batch.blocked.append(BlockedPod(build_object_reference(pod), "NoTime", message))
        return False
    newly_undecided = [item for item in undecided if not eviction_backoff.was_blocked(item, maintenance)]
    batch.blocked = [item for item in batch.blocked if item not in newly_undecided]
    return bool(newly_undecided or batch.deferred)


def _build_evicted_data(batch: EvictionResult, pods_version: str, budgets_version: str) -> Object:
    error = format_summary(item for item in batch.blocked if item.reason not in PROGRESSING_REASONS)
    return {
        "evicted": batch.evicted,
        **build_blocked_data([item.as_data() for item in batch.blocked], error),
        "podsVersion": pods_version,
        **({"budgetsVersion": budgets_version} if budgets_version else {}),
    }
