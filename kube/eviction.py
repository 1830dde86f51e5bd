"""Evictions: the subresource, its answers as data, and one batch that never waits for pods to go (NMO-6)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from kube.budgets import Blocked, Plan, identity, refused_by
from kube.door.api import Api, Object, absent_ok
from kube.door.errors import ApiError, Conflict, Denied, NotFound
from kube.pods import Pod, controller, is_daemon, is_terminating, uid

BATCH_SECONDS = 1.0
"""A batch starts no eviction later than this; what is left goes with the next batch."""
ATTEMPTS = 3
"""How often a pod that keeps changing is tried before it is left to the next batch."""
NAMED = 5
"""Blocked pods that a line names."""


@dataclass
class Batch:
    """What came of one batch.

    Attributes:
        evicted: pods the server let go, `{namespace, name, uid}`.
        gone: pods that were gone, or evicted by another pass, before we came.
        blocked: pods that may not go now, with the reason.
        unsent: time was up before their turn, or there was no answer; they may go at once.
    """

    evicted: list[dict[str, str]] = field(default_factory=list)
    gone: list[dict[str, str]] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    unsent: list[Pod] = field(default_factory=list)


def pod_path(pod: Pod) -> str:
    """Path of the pod."""
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def eviction_path(pod: Pod) -> str:
    """Path of the pod's eviction subresource."""
    return f"{pod_path(pod)}/eviction"


def eviction_of(pod: Pod) -> Object:
    """A policy/v1 Eviction of exactly this pod in exactly the state that we saw.

    The uid keeps another pod of the same name safe. The version keeps two passes over one node, side by side or with
    a list from the cache, from evicting a pod twice: the first one changes it, and the second is refused.
    """
    metadata = pod["metadata"]
    seen = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": seen},
    }


async def evict_batch(api: Api, plan: Plan, seconds: float = BATCH_SECONDS) -> Batch:
    """Evict what the plan lets go: free pods and budgets side by side, one after another within a budget."""
    until = time.monotonic() + seconds
    batch = Batch(blocked=list(plan.blocked))
    queues = [[pod] for pod in plan.free] + list(plan.queues.values())
    await asyncio.gather(*(_evict_queue(api, queue, plan, batch, until) for queue in queues))
    return batch


async def _evict_queue(api: Api, queue: list[Pod], plan: Plan, batch: Batch, until: float) -> None:
    for index, pod in enumerate(queue):
        if time.monotonic() > until:
            batch.unsent.extend(queue[index:])
            return
        refusal = await _evict(api, pod, batch)
        if refusal:
            batch.blocked.append(refusal)
            batch.blocked.extend(_same_budget(refusal, plan, queue[index + 1 :]))
            return


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
                return refusal_of(pod, error)
            break  # no answer: the next batch sees whether it was done
        else:
            batch.evicted.append(identity(pod))
            return None
    batch.unsent.append(pod)
    return None


def refusal_of(pod: Pod, error: ApiError) -> Blocked:
    """What the eviction subresource's error says about the pod (X-6); the server's own sentence is kept."""
    causes = (error.body.get("details") or {}).get("causes") or []
    budget_cause = next((cause for cause in causes if cause.get("reason") == "DisruptionBudget"), None)
    if error.status == 429:
        said = (budget_cause or {}).get("message") or error.message
        return Blocked(identity(pod), "DisruptionBudget", said, _budget_named(said))
    if error.status == 500 and "more than one PodDisruptionBudget" in error.message:
        return Blocked(identity(pod), "MultipleBudgets", error.message)
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return Blocked(identity(pod), "NamespaceTerminating", "its namespace is being deleted, and the pod with it")
    reason = "Forbidden" if isinstance(error, Denied) else "Error"
    return Blocked(identity(pod), reason, error.message)


def _budget_named(message: str) -> str:
    """The budget in "The disruption budget NAME needs 3 healthy pods and has 3 currently", "" when none is named."""
    words = message.split()
    return words[3] if message.startswith("The disruption budget ") and len(words) > 3 else ""


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


def summary(blocked: Iterable[Blocked]) -> str:
    """One line for `status.lastError`: why pods are blocked, those of one reason together, the first five by name."""
    named = sorted((f"{item.pod['namespace']}/{item.pod['name']}", item.message) for item in blocked)
    together: dict[str, list[str]] = {}
    for name, message in named[:NAMED]:
        together.setdefault(message, []).append(name)
    more = [f"and {len(named) - NAMED} more"] if len(named) > NAMED else []
    return "; ".join([*(f"{', '.join(names)}: {message}" for message, names in together.items()), *more])
