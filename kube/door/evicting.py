"""Sends evictions: one batch, free pods and budgets side by side, never waiting for pods to go (NMO-6)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable

from kube.budgets import Blocked, Plan, identity, refused_by
from kube.door.api import Api, absent_ok
from kube.door.deadline import seconds_left
from kube.door.errors import ApiError, Conflict, NotFound
from kube.door.pacing import pace
from kube.evictions import Batch, eviction_of, eviction_path, pod_path, refusal_of
from kube.pods import Pod, controller, is_daemon, is_terminating, uid

BATCH_SECONDS = 1.0
"""A batch starts no eviction later than this; what is left goes with the next batch."""
ANSWER_SECONDS = 0.5
"""The least that an eviction gets for its answer: the server sleeps that long when a budget changes under it."""
OVERTAKEN = (0.1, 0.15)
"""Seconds that the next eviction under a budget waits for the answer to the one before, at random, so that two
processes do not keep step. Side by side they collide: the server reads the budget, writes its count, and sleeps for
half a second where another one, or the disruption controller, wrote in between. Whoever sleeps is overtaken."""
NO_ANSWER = "no answer to its eviction in time: an admission webhook may be slower than that"
BUDGET_REFUSES = "DisruptionBudget"
ATTEMPTS = 3
"""How often a pod that keeps changing is tried before it is left to the next batch."""


async def evict_batch(api: Api, plan: Plan, seconds: float = BATCH_SECONDS) -> Batch:
    """Evict what the plan lets go: free pods and budgets side by side, one after another within a budget."""
    until = time.monotonic() + min(seconds, seconds_left() - ANSWER_SECONDS)
    batch = Batch(blocked=list(plan.blocked))
    queues = [[pod] for pod in plan.free] + list(plan.queues.values())
    await asyncio.gather(*(_evict_queue(api, queue, plan, batch, until) for queue in queues))
    return batch


async def _evict_queue(api: Api, queue: list[Pod], plan: Plan, batch: Batch, until: float) -> None:
    """Send one eviction after another, until time is up or the budget refuses one; then await what was overtaken."""
    sent: list[asyncio.Task[Blocked | None]] = []
    rest = list(queue)
    while rest and not any(map(_closes, sent)) and await _turn(rest[0], until):
        sent.append(asyncio.create_task(_evict(api, rest.pop(0), batch)))
        await asyncio.wait(sent[-1:], timeout=random.uniform(*OVERTAKEN))  # noqa: S311 - a jitter, no secret
    refusals = [refusal for refusal in await asyncio.gather(*sent) if refusal]
    batch.blocked.extend(refusals)
    closing = next((refusal for refusal in refusals if refusal.reason == BUDGET_REFUSES), None)
    if closing:
        batch.blocked.extend(_same_budget(closing, plan, rest))
    else:
        batch.unsent.extend(rest)


async def _turn(pod: Pod, until: float) -> bool:
    """Wait for the turn of the pod's node; False when time was up before it came."""
    left = until - time.monotonic()
    return left >= 0 and await pace().turn(str((pod.get("spec") or {}).get("nodeName") or ""), left)


def _closes(eviction: asyncio.Task[Blocked | None]) -> bool:
    """Whether it was refused by its budget, which will refuse those behind it, too."""
    refusal = eviction.result() if eviction.done() else None
    return refusal is not None and refusal.reason == BUDGET_REFUSES


def _same_budget(refusal: Blocked, plan: Plan, rest: list[Pod]) -> Iterable[Blocked]:
    """Who waits behind a refused pod waits for the same budget."""
    budget = plan.budgets.get(f"{refusal.pod['namespace']}/{refusal.budget}")
    for pod in rest:
        yield refused_by(budget, pod) if budget else Blocked(identity(pod), refusal.reason, refusal.message)


async def _evict(api: Api, pod: Pod, batch: Batch) -> Blocked | None:
    """One eviction: booked in the batch when it worked, else the reason why not."""
    for _ in range(ATTEMPTS):
        try:
            await api.create(eviction_path(pod), eviction_of(pod))
        except NotFound:
            batch.gone.append(identity(pod))
            return None
        except Conflict:
            fresh = await absent_ok(api.get(pod_path(pod)))
            if fresh is None or uid(fresh) != uid(pod) or is_terminating(fresh):
                batch.gone.append(identity(pod))
                return None
            pod = fresh  # something else about it changed: it is still to go
        except ApiError as error:
            if error.status:
                refusal = refusal_of(pod, error.status, error.message, error.body)
                if refusal.reason == "Busy":
                    pace().rest((error.body.get("details") or {}).get("retryAfterSeconds") or 1)
                return refusal
            return Blocked(identity(pod), "NoAnswer", NO_ANSWER)  # the next batch sees whether it was done
        else:
            batch.evicted.append(identity(pod))
            return None
    return Blocked(identity(pod), "Changing", f"the pod changed {ATTEMPTS} times while its eviction was sent")


async def orphans(api: Api, pods: Iterable[Pod]) -> set[str]:
    """Uids of DaemonSet pods whose DaemonSet is gone: nobody looks after them any more (NMO-7)."""
    daemons = [pod for pod in pods if is_daemon(pod)]
    owners = {(pod["metadata"]["namespace"], (controller(pod) or {})["name"]) for pod in daemons}
    missing = set()
    for owner, exists in zip(owners, await asyncio.gather(*(_exists(api, *owner) for owner in owners)), strict=True):
        if not exists:
            missing.add(owner)
    return {uid(pod) for pod in daemons if (pod["metadata"]["namespace"], (controller(pod) or {})["name"]) in missing}


async def _exists(api: Api, namespace: str, name: str) -> bool:
    try:
        await api.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
    except NotFound:
        return False
    return True
