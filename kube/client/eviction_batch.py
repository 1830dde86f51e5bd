"""Sends evictions in batches without waiting for pods to terminate (NMO-6).

A batch evicts pods without a budget concurrently, and works through several budgets concurrently.

Further batches follow within the time of one batch as long as the budgets that held pods back admit more. Ten evictions
under one budget then take as long as their replacement pods need to become ready. If the pass ended after the first
batch, the others would wait for the next event. Its pass would read the maintenance, node and pods again and write
another status.

The end of a batch does not cancel the evictions that it sent. The API server may already have counted such a pod
against its budget, and a pod that then stayed would use up one allowed disruption for two minutes. The eviction
continues, and the next batch takes its outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence

from kube.budgets import Blocked, Plan, budget_paths, identity, plan, refused_by
from kube.client.api import Api, absent_ok
from kube.client.api_errors import ApiError, Unavailable
from kube.client.concurrent_requests import together
from kube.client.deadline import seconds_left, within
from kube.client.eviction_tracker import Sending, Sent
from kube.client.paging import Listed
from kube.evictions import Batch, only, set_apart
from kube.pods import Pod, controller, is_daemon, uid
from kube.resource_versions import oldest

BATCH_SECONDS = 1.0
"""A batch starts no eviction after this time; the next batch takes the remaining pods."""
MARGIN_SECONDS = 0.1
"""Time reserved for the rest of the pass after its evictions."""
OVERSLEPT_SECONDS = 0.6
"""Time that a batch waits for its last responses.

It covers one sleep of the API server after a conflict (0.5 s), not two. A later response is not lost.
"""
SLOW_SECONDS = 5.0
"""An eviction without a response for this long is reported as blocked; before that, as in flight."""
ENDING_SECONDS = 2.0
"""Maximum time that an exiting process waits for the responses to its evictions.

They take milliseconds unless an admission webhook is slow.
"""
NO_ANSWER = "no answer to its eviction yet: an admission webhook may be slow"
BUDGET_REFUSES = "DisruptionBudget"
"""Refusal reason of a budget, which would refuse the remaining pods of its queue too."""
OPENED_SECONDS = 0.25
"""Minimum duration of a batch after which the budgets are read again; a shorter batch is the last one.

In less time no replacement pod can become ready, so a budget that allows one disruption would be read again for each
pod. PodSource does not report any earlier that a budget admits pods again.
"""


async def evict_batch(
    api: Api, plan: Plan, seconds: float = BATCH_SECONDS, *, node: str = "", host: str = "", own_only: bool = False
) -> Batch:
    """Evict the pods of the plan: concurrently without a budget, one after another within each budget.

    Args:
        api: The API client.
        plan: The evictions to send.
        seconds: Time after which no eviction is sent.
        node: The result includes this node's evictions that were granted after their batches ended.
        host: Name of the pod that this process runs in. It is evicted alone, after all earlier evictions from any node
            are answered and reported, because an exiting process cannot report their outcomes.
        own_only: Ignore the evictions that other batches sent, as a replay must.

    Raises:
        Unavailable: The pass has no time left for evictions, because the API server is slow.
    """
    left, started = seconds_left() - MARGIN_SECONDS, time.monotonic()
    if left <= 0:
        raise Unavailable(0, "no time was left for evictions: the API server is slow")
    times = started + min(seconds, left), started + left
    batch, sending = Batch(blocked=list(plan.blocked)), Sending.of(api)
    if own_only:
        plan, node = _unsent(plan, sending, batch), ""
    others, own = set_apart(plan, host)
    await _evict_all(sending, others, batch, times)
    batch.evicted.extend(sending.take_granted(node))
    waits_here, waits = sending.awaits(node), sending.awaits()
    if batch.evicted or batch.gone or (waits and not waits_here):
        batch.unsent.extend([*own.free, *itertools.chain(*own.queues.values())])
    elif not (waits_here or waits):
        await _evict_all(sending, own, batch, times)
    return batch


def _unsent(plan: Plan, sending: Sending, batch: Batch) -> Plan:
    """Return the plan without the pods in flight whose outcome another batch takes; record these as in flight."""
    planned = [*plan.free, *itertools.chain(*plan.queues.values())]
    batch.under_way.extend(identity(pod) for pod in planned if sending.has_sent(pod))
    return only(plan, lambda pod: not sending.has_sent(pod))


async def evict_batches(
    api: Api, first: Plan, pods: Sequence[Pod], *, node: str = "", host: str = "", own_only: bool = False
) -> Batch:
    """Evict the pods of the plan, and then those whose budgets admit them within the time of one batch.

    `pods` are the pods for which the plan was made; the other arguments are those of `evict_batch`. The pod that this
    process runs in is evicted with the first batch or not at all. Raises `Unavailable` as `evict_batch` does, but only
    for the first batch. If a later batch fails, its pods are left to the next event.
    """
    read, until = time.monotonic(), time.monotonic() + BATCH_SECONDS
    done = last = await evict_batch(api, first, node=node, host=host, own_only=own_only)
    going = first
    while held := _held(going, last, host):
        now = time.monotonic()
        if now - read < OPENED_SECONDS or now >= until:
            break
        waiting, read = [pod for pod in pods if uid(pod) in held], now
        try:
            with within(min(until - now, seconds_left())):
                going = plan(waiting, (await budgets_over(api, waiting)).items, first.options)
            if not (going.queues or going.free):
                break
            last = await evict_batch(api, going, until - time.monotonic(), node=node, own_only=own_only)
        except ApiError:
            break
        done = _joined(done, held, last)
    return done


async def granted_late(api: Api, node: str) -> list[dict[str, str]]:
    """Take the pods of the node whose eviction was granted after its batch ended, when no further batch follows."""
    return Sending.of(api).take_granted(node)


def on_granted_late(api: Api, late: Callable[[str, list[dict[str, str]]], None]) -> None:
    """Register a callback for evictions that were granted after their batch ended and that no batch takes.

    It gets a node and its pods when the record of such an eviction expires.
    """
    Sending.of(api).late = late


async def nodes_of_late(api: Api) -> set[str]:
    """Return the nodes for which the `on_granted_late` callback may still be called."""
    return Sending.of(api).nodes()


async def granted_late_of_all(api: Api) -> dict[str, list[dict[str, str]]]:
    """Take, by node, the pods of all nodes whose eviction was granted after its batch ended.

    For a process that exits: the function first waits up to `ENDING_SECONDS` for the evictions in flight.
    """
    sending = Sending.of(api)
    await sending.answered(ENDING_SECONDS)
    return {node: pods for node in sending.nodes() if (pods := sending.take_granted(node))}


async def _evict_all(sending: Sending, plan: Plan, batch: Batch, times: tuple[float, float]) -> None:
    free = (_evict_queue(sending, [pod], plan, batch, times) for pod in plan.free)
    behind = (_evict_queue(sending, pods, plan, batch, times, budget) for budget, pods in plan.queues.items())
    await together(*free, *behind)


async def _evict_queue(
    sending: Sending, queue: list[Pod], plan: Plan, batch: Batch, times: tuple[float, float], budget: str = ""
) -> None:
    """Send one eviction after another until time is up or the budget refuses one, then await the responses.

    Pods whose eviction is already in flight come first, the others in random order. Two processes that both started
    with the first pod would otherwise conflict at every pod. If earlier evictions without a response prevent any new
    one, the remaining pods are left to the next event.

    `times` contains the time after which no eviction is sent, and the time after which no response is awaited, both by
    `time.monotonic()`.
    """
    until, last = times
    began = time.monotonic()
    sent: list[tuple[Pod, Sent]] = []
    batch.under_way.extend(identity(pod) for pod in queue if sending.was_granted(pod))
    left = [pod for pod in queue if not sending.was_granted(pod)]
    rest = sorted(random.sample(left, len(left)), key=sending.has_sent)
    while rest and not any(one.is_refused(BUDGET_REFUSES) for _, one in sent):
        one = await sending.send(rest[-1], until, budget, plan.options)
        if one is None:
            break
        sent.append((rest.pop(), one))
    if sent:
        seconds = min(OVERSLEPT_SECONDS, last - time.monotonic())
        await asyncio.wait({one.task for _, one in sent}, timeout=max(0.0, seconds))
    refusals = [refusal for pod, one in sent if (refusal := _booked(pod, one, sending, batch))]
    batch.blocked.extend(refusals)
    closing = next((refusal for refusal in refusals if refusal.reason == BUDGET_REFUSES), None)
    if closing:
        batch.blocked.extend(_same_budget(closing, plan, rest))
    elif not sending.is_held(budget) or any(one.at >= began for _, one in sent):
        batch.unsent.extend(rest)


def _booked(pod: Pod, sent: Sent, sending: Sending, batch: Batch) -> Blocked | None:
    """Add a successful or pending eviction to `batch`; return the reason if it failed or has no response for long."""
    if not sent.task.done():
        if time.monotonic() - sent.at >= SLOW_SECONDS:
            return Blocked(identity(pod), "NoAnswer", NO_ANSWER)
        batch.under_way.append(identity(pod))
        return None
    sending.forget(uid(pod))
    outcome = sent.task.result()
    if isinstance(outcome, Blocked):
        return outcome
    (batch.evicted if outcome == "evicted" else batch.gone).append(identity(pod))
    return None


def _same_budget(refusal: Blocked, plan: Plan, rest: list[Pod]) -> Iterable[Blocked]:
    """Yield the reason for each pod queued after a refused one: it waits for the same budget."""
    budget = plan.budgets.get(f"{refusal.pod['namespace']}/{refusal.budget}")
    for pod in rest:
        yield refused_by(budget, pod) if budget else Blocked(identity(pod), refusal.reason, refusal.message)


async def budgets_over(api: Api, pods: Iterable[Pod], version: str = "0") -> Listed:
    """Return the budgets in the namespaces of these pods, in a state at least as new as `version`.

    The result's version is that of the oldest list.
    """
    lists = await together(*(api.list(path, version=version) for path in budget_paths(pods)))
    items = [budget for listed in lists for budget in listed["items"]]
    return Listed(items, oldest(str(listed["metadata"]["resourceVersion"]) for listed in lists))


async def orphans(api: Api, pods: Iterable[Pod]) -> set[str]:
    """Return the uids of the DaemonSet pods whose DaemonSet does not exist, so that nothing manages them (NMO-7)."""
    daemons = [pod for pod in pods if is_daemon(pod)]
    owners = {(pod["metadata"]["namespace"], (controller(pod) or {})["name"]) for pod in daemons}
    missing = set()
    for owner, exists in zip(owners, await together(*(_exists(api, *owner) for owner in owners)), strict=True):
        if not exists:
            missing.add(owner)
    return {uid(pod) for pod in daemons if (pod["metadata"]["namespace"], (controller(pod) or {})["name"]) in missing}


async def _exists(api: Api, namespace: str, name: str) -> bool:
    found = await absent_ok(api.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"))
    return found is not None


def _held(going: Plan, last: Batch, host: str) -> set[str]:
    """Return the uids of pods held back by a budget that admitted others; empty if the last batch left pods unsent.

    It is also empty if that batch evicted no pod. Pods of a budget that refused an eviction of the plan are excluded
    (rule 9), and so is the pod that this process runs in.
    """
    if last.unsent or not last.evicted:
        return set()
    planned = {item.pod["uid"]: _budget(item) for item in going.blocked}
    refused = {_budget(item) for item in last.blocked if item.pod["uid"] not in planned}
    opened = going.queues.keys() - refused
    return {
        item.pod["uid"] for item in going.blocked if planned[item.pod["uid"]] in opened and item.pod["name"] != host
    }


def _budget(item: Blocked) -> str:
    """Return `namespace/name` of the budget that holds a pod back, "" if the reason is not a budget."""
    return f"{item.pod['namespace']}/{item.budget}" if item.reason == BUDGET_REFUSES else ""


def _joined(done: Batch, held: set[str], last: Batch) -> Batch:
    """Merge the last batch into the earlier ones; its outcomes replace those of the pods that were held back."""
    return Batch(
        done.evicted + last.evicted,
        done.gone + last.gone,
        [item for item in done.blocked if item.pod["uid"] not in held] + last.blocked,
        done.under_way + last.under_way,
        done.unsent + last.unsent,
    )
