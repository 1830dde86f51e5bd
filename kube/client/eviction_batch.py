"""Sends evictions in batches without waiting for pods to terminate (NMO-6).

A batch evicts pods without a budget concurrently. Evictions under different budgets are also concurrent.

A pass may send several batches within `BATCH_SECONDS`, while the budgets that held pods back allow further evictions.
Ten evictions under one budget then take only the time that their replacement pods need to become ready. If the pass
ended after the first batch, the other pods would wait for the next event. The pass for that event would read the
maintenance, node and pods again and cause another status write.

The end of a batch does not cancel the evictions that it sent. The API server may already have counted an evicted pod
against its budget. If that pod then stayed, it would use up one allowed disruption for two minutes. The eviction
continues, and the next batch collects its outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence

from kube.budgets import (
    BlockedPod,
    EvictionPlan,
    build_blocked_by_budget,
    build_budget_paths,
    build_object_reference,
    plan_evictions,
)
from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import ApiError, Unavailable
from kube.client.deadline import get_seconds_left, set_deadline
from kube.client.eviction_tracker import EvictionTracker, InFlightEviction
from kube.client.paging import ListResult
from kube.evictions import EvictionResult, filter_plan, split_off_pod
from kube.pods import Pod, get_controller, get_uid, is_daemonset_pod
from kube.resource_versions import find_oldest

BATCH_SECONDS = 1.0
"""Seconds after which a batch starts no further eviction; the next batch evicts the remaining pods."""
REPLY_MARGIN_SECONDS = 0.1
"""Seconds that a pass reserves for its work after the evictions."""
RESPONSE_WAIT_SECONDS = 0.6
"""Seconds for which a batch waits for its last responses.

This time covers one sleep of the API server after a conflict (0.5 s), but not two. The next batch collects a later
response.
"""
SLOW_EVICTION_SECONDS = 5.0
"""Seconds after which an eviction without a response is reported as blocked; before that, it counts as in flight."""
SHUTDOWN_WAIT_SECONDS = 2.0
"""Maximum seconds for which an exiting process waits for the responses to its evictions.

A response takes milliseconds unless an admission webhook is slow.
"""
NO_ANSWER_MESSAGE = "no response to the eviction request yet: an admission webhook may be slow"
BUDGET_REASON = "DisruptionBudget"
"""Reason of a pod that a budget blocks; the budget would also block the remaining pods in its queue."""
MIN_BATCH_SECONDS = 0.25
"""Minimum duration of a batch after which the budgets are read again; a shorter batch is the last one.

In less time, no replacement pod can become ready, so a budget that allows one disruption would be read again for each
pod. The pods lose no time, because PodSource reports when the budget allows evictions again.
"""


async def evict_batch(
    api: Api,
    plan: EvictionPlan,
    max_seconds: float = BATCH_SECONDS,
    *,
    node_name: str = "",
    own_pod_name: str = "",
    ignore_other_batches: bool = False,
) -> EvictionResult:
    """Evict the pods of the plan: concurrently without a budget, one after another within each budget.

    Args:
        api: The API client.
        plan: The evictions to send.
        max_seconds: Seconds after which the batch sends no further eviction.
        node_name: Node of the maintenance. The result includes the node's evictions that were granted after earlier
            batches ended.
        own_pod_name: Name of the pod that this process runs in. It is evicted alone, after all earlier evictions from
            any node are answered and reported, because an exiting process cannot report their outcomes.
        ignore_other_batches: Ignore the evictions that other batches sent, as a replay must.

    Raises:
        Unavailable: The pass has no time left for evictions, because the API server is slow.
    """
    time_left, started = get_seconds_left() - REPLY_MARGIN_SECONDS, time.monotonic()
    if time_left <= 0:
        raise Unavailable(0, "no time left for evictions: the API server is slow")
    deadlines = started + min(max_seconds, time_left), started + time_left
    result, tracker = EvictionResult(blocked=list(plan.blocked)), EvictionTracker.for_client(api)
    if ignore_other_batches:
        plan, node_name = _exclude_sent_pods(plan, tracker, result), ""
    others, own_plan = split_off_pod(plan, own_pod_name)
    await _evict_all(tracker, others, result, deadlines)
    result.evicted.extend(tracker.take_granted_evictions(node_name))
    is_node_pending, is_any_pending = tracker.has_pending_evictions(node_name), tracker.has_pending_evictions()
    if result.evicted or result.already_gone or (is_any_pending and not is_node_pending):
        result.deferred.extend([*own_plan.unbudgeted, *itertools.chain(*own_plan.queues_by_budget.values())])
    elif not (is_node_pending or is_any_pending):
        await _evict_all(tracker, own_plan, result, deadlines)
    return result


def _exclude_sent_pods(plan: EvictionPlan, tracker: EvictionTracker, result: EvictionResult) -> EvictionPlan:
    """Return the plan without pods that another batch has sent an eviction for; add such pods to `result.in_flight`."""
    planned = [*plan.unbudgeted, *itertools.chain(*plan.queues_by_budget.values())]
    result.in_flight.extend(build_object_reference(pod) for pod in planned if tracker.has_sent(pod))
    return filter_plan(plan, lambda pod: not tracker.has_sent(pod))


async def evict_batches(
    api: Api,
    first_plan: EvictionPlan,
    pods: Sequence[Pod],
    *,
    node_name: str = "",
    own_pod_name: str = "",
    ignore_other_batches: bool = False,
) -> EvictionResult:
    """Evict the pods of the plan, and then blocked pods whose budgets allow their eviction within `BATCH_SECONDS`.

    `pods` are the pods for which the plan was made; the other arguments are those of `evict_batch`. The pod that this
    process runs in is evicted with the first batch or not at all. Raises `Unavailable` like `evict_batch`, but only for
    the first batch. If a later batch fails, its pods are left to the next event.
    """
    read_at, deadline = time.monotonic(), time.monotonic() + BATCH_SECONDS
    result = last_result = await evict_batch(
        api, first_plan, node_name=node_name, own_pod_name=own_pod_name, ignore_other_batches=ignore_other_batches
    )
    current_plan = first_plan
    while held_uids := _find_held_back_uids(current_plan, last_result, own_pod_name):
        now = time.monotonic()
        if now - read_at < MIN_BATCH_SECONDS or now >= deadline:
            break
        waiting, read_at = [pod for pod in pods if get_uid(pod) in held_uids], now
        try:
            with set_deadline(min(deadline - now, get_seconds_left())):
                current_plan = plan_evictions(
                    waiting, (await list_covering_budgets(api, waiting)).items, first_plan.options
                )
            if not (current_plan.queues_by_budget or current_plan.unbudgeted):
                break
            last_result = await evict_batch(
                api,
                current_plan,
                deadline - time.monotonic(),
                node_name=node_name,
                ignore_other_batches=ignore_other_batches,
            )
        except ApiError:
            break
        result = _merge_results(result, held_uids, last_result)
    return result


async def take_late_evictions(api: Api, node_name: str) -> list[dict[str, str]]:
    """Return the node's pods whose eviction was granted after the batch had ended, and remove their records.

    Callers use this function if no further batch follows.
    """
    return EvictionTracker.for_client(api).take_granted_evictions(node_name)


def set_late_eviction_callback(api: Api, callback: Callable[[str, list[dict[str, str]]], None]) -> None:
    """Register a callback for evictions that were granted after their batch ended and that no batch collects.

    The callback receives a node and its pods when the record of such an eviction expires.
    """
    EvictionTracker.for_client(api).on_late_evictions = callback


async def list_nodes_with_pending_evictions(api: Api) -> set[str]:
    """Return the nodes with evictions in flight or uncollected, for which the late-eviction callback may be called."""
    return EvictionTracker.for_client(api).list_nodes_with_evictions()


async def take_all_late_evictions(api: Api) -> dict[str, list[dict[str, str]]]:
    """Return, by node, all pods whose eviction was granted after the batch had ended, and remove their records.

    A process calls this function before it exits. The function first waits up to `SHUTDOWN_WAIT_SECONDS` for the
    evictions in flight.
    """
    tracker = EvictionTracker.for_client(api)
    await tracker.wait_for_responses(SHUTDOWN_WAIT_SECONDS)
    return {
        node: pods for node in tracker.list_nodes_with_evictions() if (pods := tracker.take_granted_evictions(node))
    }


async def _evict_all(
    tracker: EvictionTracker, plan: EvictionPlan, result: EvictionResult, deadlines: tuple[float, float]
) -> None:
    unbudgeted = (_evict_queue(tracker, [pod], plan, result, deadlines) for pod in plan.unbudgeted)
    budgeted = (
        _evict_queue(tracker, pods, plan, result, deadlines, budget) for budget, pods in plan.queues_by_budget.items()
    )
    await gather_all(*unbudgeted, *budgeted)


async def _evict_queue(
    tracker: EvictionTracker,
    pods: list[Pod],
    plan: EvictionPlan,
    result: EvictionResult,
    deadlines: tuple[float, float],
    budget_key: str = "",
) -> None:
    """Send one eviction after another until the time runs out or the budget refuses one, then await the responses.

    Pods whose eviction is already in flight come first; all other pods follow in random order. Two processes that both
    started with the first pod would otherwise conflict at every pod. If earlier evictions without a response prevent
    any new eviction, the remaining pods are left to the next event.

    `deadlines` contains the time after which no eviction is sent, and the time after which no response is awaited, both
    by `time.monotonic()`.
    """
    send_deadline, response_deadline = deadlines
    began = time.monotonic()
    sent: list[tuple[Pod, InFlightEviction]] = []
    result.in_flight.extend(build_object_reference(pod) for pod in pods if tracker.was_recently_granted(pod))
    not_granted = [pod for pod in pods if not tracker.was_recently_granted(pod)]
    remaining = sorted(random.sample(not_granted, len(not_granted)), key=tracker.has_sent)
    while remaining and not any(eviction.is_refused(BUDGET_REASON) for _, eviction in sent):
        eviction = await tracker.send(remaining[-1], send_deadline, budget_key, plan.options)
        if eviction is None:
            break
        sent.append((remaining.pop(), eviction))
    if sent:
        seconds = min(RESPONSE_WAIT_SECONDS, response_deadline - time.monotonic())
        await asyncio.wait({eviction.task for _, eviction in sent}, timeout=max(0.0, seconds))
    refusals = [refusal for pod, eviction in sent if (refusal := _record_outcome(pod, eviction, tracker, result))]
    result.blocked.extend(refusals)
    budget_refusal = next((refusal for refusal in refusals if refusal.reason == BUDGET_REASON), None)
    if budget_refusal:
        result.blocked.extend(_block_remaining_pods(budget_refusal, plan, remaining))
    elif not tracker.has_unanswered(budget_key) or any(eviction.sent_at >= began for _, eviction in sent):
        result.deferred.extend(remaining)


def _record_outcome(
    pod: Pod, eviction: InFlightEviction, tracker: EvictionTracker, result: EvictionResult
) -> BlockedPod | None:
    """Add an eviction that succeeded or is in flight to `result`; return a `BlockedPod` for any other eviction.

    Other evictions have failed, or have had no response for `SLOW_EVICTION_SECONDS`.
    """
    if not eviction.task.done():
        if time.monotonic() - eviction.sent_at >= SLOW_EVICTION_SECONDS:
            return BlockedPod(build_object_reference(pod), "NoAnswer", NO_ANSWER_MESSAGE)
        result.in_flight.append(build_object_reference(pod))
        return None
    tracker.mark_collected(get_uid(pod))
    outcome = eviction.task.result()
    if isinstance(outcome, BlockedPod):
        return outcome
    (result.evicted if outcome == "evicted" else result.already_gone).append(build_object_reference(pod))
    return None


def _block_remaining_pods(refusal: BlockedPod, plan: EvictionPlan, remaining: list[Pod]) -> Iterable[BlockedPod]:
    """Yield a `BlockedPod` for each pod queued after a refused one, because all of them wait for the same budget."""
    budget = plan.budgets_by_key.get(f"{refusal.pod['namespace']}/{refusal.budget}")
    for pod in remaining:
        yield (
            build_blocked_by_budget(budget, pod)
            if budget
            else BlockedPod(build_object_reference(pod), refusal.reason, refusal.message)
        )


async def list_covering_budgets(api: Api, pods: Iterable[Pod], resource_version: str = "0") -> ListResult:
    """Return the budgets in the namespaces of these pods, in a state at least as new as `resource_version`.

    The result's version is that of the oldest list.
    """
    lists = await gather_all(*(api.list(path, resource_version=resource_version) for path in build_budget_paths(pods)))
    items = [budget for budget_list in lists for budget in budget_list["items"]]
    return ListResult(items, find_oldest(str(budget_list["metadata"]["resourceVersion"]) for budget_list in lists))


async def find_orphan_uids(api: Api, pods: Iterable[Pod]) -> set[str]:
    """Return the uids of the DaemonSet pods whose DaemonSet does not exist, so that nothing manages them (NMO-7)."""
    daemonset_pods = [pod for pod in pods if is_daemonset_pod(pod)]
    owners = {(pod["metadata"]["namespace"], (get_controller(pod) or {})["name"]) for pod in daemonset_pods}
    missing = set()
    for owner, exists in zip(
        owners, await gather_all(*(_daemonset_exists(api, *owner) for owner in owners)), strict=True
    ):
        if not exists:
            missing.add(owner)
    return {
        get_uid(pod)
        for pod in daemonset_pods
        if (pod["metadata"]["namespace"], (get_controller(pod) or {})["name"]) in missing
    }


async def _daemonset_exists(api: Api, namespace: str, name: str) -> bool:
    return await get_or_none(api.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")) is not None


def _find_held_back_uids(sent_plan: EvictionPlan, last_result: EvictionResult, own_pod_name: str) -> set[str]:
    """Return the uids of the pods that a budget held back although it allowed the eviction of other pods.

    The result is empty if the last batch deferred a pod or evicted none. Pods of a budget that refused an eviction of
    the plan are excluded (design rule 9), and so is the pod that this process runs in.
    """
    if last_result.deferred or not last_result.evicted:
        return set()
    planned = {item.pod["uid"]: _get_budget_key(item) for item in sent_plan.blocked}
    refused = {_get_budget_key(item) for item in last_result.blocked if item.pod["uid"] not in planned}
    admitting_budgets = sent_plan.queues_by_budget.keys() - refused
    return {
        item.pod["uid"]
        for item in sent_plan.blocked
        if planned[item.pod["uid"]] in admitting_budgets and item.pod["name"] != own_pod_name
    }


def _get_budget_key(blocked_pod: BlockedPod) -> str:
    """Return `namespace/name` of the budget that holds a pod back, or "" if the reason is not a budget."""
    return f"{blocked_pod.pod['namespace']}/{blocked_pod.budget}" if blocked_pod.reason == BUDGET_REASON else ""


def _merge_results(earlier: EvictionResult, held_uids: set[str], latest: EvictionResult) -> EvictionResult:
    """Merge the latest batch's result into the earlier batches' result; replace the entries for `held_uids`."""
    return EvictionResult(
        earlier.evicted + latest.evicted,
        earlier.already_gone + latest.already_gone,
        [item for item in earlier.blocked if item.pod["uid"] not in held_uids] + latest.blocked,
        earlier.in_flight + latest.in_flight,
        earlier.deferred + latest.deferred,
    )
