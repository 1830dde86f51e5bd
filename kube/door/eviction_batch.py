"""Sends evictions: a batch, free pods and budgets side by side, never waiting for pods to go (NMO-6).

Others follow within its time as long as the budgets that held pods back open: ten evictions under one budget take as
long as the pods of the first ones need to be ready elsewhere. A look that ended with them would leave the next ones to
a hint: another reading of maintenance, node and pods, and another status.

An eviction that was sent is not given up when the batch ends: the server may have counted it against its budget
already, and a pod that then stays keeps its slot for two minutes. It goes on, and the next batch takes its outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence

from kube.budgets import Blocked, Plan, budget_paths, identity, plan, refused_by
from kube.door.api import Api, absent_ok
from kube.door.api_errors import ApiError, Unavailable
from kube.door.concurrent_requests import together
from kube.door.deadline import seconds_left, within
from kube.door.inflight_evictions import Sending, Sent
from kube.door.paging import Listed
from kube.evictions import Batch, only, set_apart
from kube.pods import Pod, controller, is_daemon, uid
from kube.resource_versions import oldest

BATCH_SECONDS = 1.0
"""A batch starts no eviction later than this; what is left goes with the next batch."""
MARGIN_SECONDS = 0.1
"""For the rest of the look, behind its evictions."""
OVERSLEPT_SECONDS = 0.6
"""A batch awaits its last answers for one sleep of the server, not for two: they are not lost."""
SLOW_SECONDS = 5.0
"""An eviction that has no answer for so long is said to be blocked; until then it is on its way."""
ENDING_SECONDS = 2.0
"""For so long a process that ends awaits what it has sent, which takes milliseconds where no webhook is slow."""
NO_ANSWER = "no answer to its eviction yet: an admission webhook may be slow"
BUDGET_REFUSES = "DisruptionBudget"
"""It will refuse those behind it, too."""
OPENED_SECONDS = 0.25
"""A batch that took less is the last one: of a budget of one, a pod has no time to be ready elsewhere, and the budgets
would be read once more for each pod. PodSource tells of an opening no earlier either."""


async def evict_batch(
    api: Api, plan: Plan, seconds: float = BATCH_SECONDS, *, node: str = "", host: str = "", own_only: bool = False
) -> Batch:
    """Evict what the plan lets go: free pods and budgets side by side, one after another within a budget.

    In: the node, of which outcomes that came behind their batches are taken, too; the name of the pod that this process
    runs in. That one goes alone, when what was sent before it, from whatever node, is answered and told: who ends tells
    nobody what came of the others. With `own_only` it leaves what others sent alone, as a replay has to.

    Raises `Unavailable` when the look has no time for that any more: the API server is slow.
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
    """The plan without the pods that another batch has sent, and takes the outcome of: they are under way."""
    planned = [*plan.free, *itertools.chain(*plan.queues.values())]
    batch.under_way.extend(identity(pod) for pod in planned if sending.has_sent(pod))
    return only(plan, lambda pod: not sending.has_sent(pod))


async def evict_batches(
    api: Api, first: Plan, pods: Sequence[Pod], *, node: str = "", host: str = "", own_only: bool = False
) -> Batch:
    """Evict what the plan lets go; then, within the time of one batch, what budgets let go that open meanwhile.

    In: the pods that the plan is for; the others as in `evict_batch`. The pod that this process runs in goes with
    the first batch or with none. Raises `Unavailable` as `evict_batch` does for the first one; what the others are
    refused is left to the next hint.
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
    """The pods `{namespace, name, uid}` whose eviction was granted behind its batch, which no batch follows."""
    return Sending.of(api).take_granted(node)


def on_granted_late(api: Api, late: Callable[[str, list[dict[str, str]]], None]) -> None:
    """Call this with node and pods, as `granted_late` gives them, where no batch has asked for them in a minute."""
    Sending.of(api).late = late


async def nodes_of_late(api: Api) -> set[str]:
    """The nodes of which such a call may still come."""
    return Sending.of(api).nodes()


async def granted_late_of_all(api: Api) -> dict[str, list[dict[str, str]]]:
    """The same of all nodes, by node, when nobody will ask any more; what is under way is awaited for a moment."""
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
    """Send one eviction after another, until time is up or the budget refuses one; then await what was overtaken.

    Those sent before come first, the others in any order: two processes that begin at the same pod would be at the same
    one again and again. Where none is sent since those before have no answer, the rest is left to the next hint.

    `times`: when no eviction is sent any more, and when no answer is awaited any more, by `time.monotonic()`.
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
    """Book an eviction that worked; the reason of one that did not, or has no answer yet."""
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
    """Who waits behind a refused pod waits for the same budget."""
    budget = plan.budgets.get(f"{refusal.pod['namespace']}/{refusal.budget}")
    for pod in rest:
        yield refused_by(budget, pod) if budget else Blocked(identity(pod), refusal.reason, refusal.message)


async def budgets_over(api: Api, pods: Iterable[Pod], version: str = "0") -> Listed:
    """The budgets of the namespaces that these pods are in, no older than `version`; and how old at most."""
    lists = await together(*(api.list(path, version=version) for path in budget_paths(pods)))
    items = [budget for listed in lists for budget in listed["items"]]
    return Listed(items, oldest(str(listed["metadata"]["resourceVersion"]) for listed in lists))


async def orphans(api: Api, pods: Iterable[Pod]) -> set[str]:
    """Uids of DaemonSet pods whose DaemonSet is gone: nobody looks after them any more (NMO-7)."""
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
    """Uids of the pods held back by a budget that let others go; none where anything is left to the next look.

    Not those of a budget of which the server thinks otherwise than the plan does (rule 9).
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
    """`namespace/name` of the budget that holds a pod back, "" where it is something else."""
    return f"{item.pod['namespace']}/{item.budget}" if item.reason == BUDGET_REFUSES else ""


def _joined(done: Batch, held: set[str], last: Batch) -> Batch:
    """All batches as one: of the pods that were held back the last one says what became of them."""
    return Batch(
        done.evicted + last.evicted,
        done.gone + last.gone,
        [item for item in done.blocked if item.pod["uid"] not in held] + last.blocked,
        done.under_way + last.under_way,
        done.unsent + last.unsent,
    )
