"""Evictions as data: the subresource's requests, what its refusals mean, and what became of a batch (NMO-6). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kube.budgets import Blocked, Plan, identity
from kube.paths import Object
from kube.pods import NODE_MAINTENANCE, DrainOptions, Pod
from kube.words import shortened

LONGEST_MESSAGE = 1024
"""Characters of the server's words that are kept: a webhook may send megabytes, and a status holds hundreds of pods."""
ADMISSION = "admission webhook"
"""So begins what a webhook refuses, with any status that it likes."""
FORBIDDEN = (401, 403)
DISABLE_EVICTION = "DisableEviction"
DELETING = "add manifests/components/deleting to the installation, or unset spec.drain.disableEviction"


@dataclass
class Batch:
    """What came of one batch.

    Attributes:
        evicted: pods the server let go, `{namespace, name, uid}`.
        gone: pods that were gone, or evicted by another pass, before we came.
        blocked: pods that may not go now, with the reason.
        under_way: sent, and not answered yet; the next batch takes the outcome.
        unsent: time was up before their turn; they may go at once.
    """

    evicted: list[dict[str, str]] = field(default_factory=list)
    gone: list[dict[str, str]] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    under_way: list[dict[str, str]] = field(default_factory=list)
    unsent: list[Pod] = field(default_factory=list)


def set_apart(plan: Plan, name: str) -> tuple[Plan, Plan]:
    """The plan without the pods of a name, and one of these alone, with nothing blocked."""
    others = only(plan, lambda pod: pod["metadata"]["name"] != name)
    own = only(plan, lambda pod: pod["metadata"]["name"] == name)
    return others, replace(own, blocked=[])


def only(plan: Plan, wanted: Callable[[Pod], bool]) -> Plan:
    """The plan with those of the pods that it lets go alone."""
    queues = {budget: list(filter(wanted, pods)) for budget, pods in plan.queues.items()}
    full = {budget: pods for budget, pods in queues.items() if pods}
    return replace(plan, free=list(filter(wanted, plan.free)), queues=full)


def pod_path(pod: Pod) -> str:
    """Path of the pod."""
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def eviction_path(pod: Pod) -> str:
    """Path of the pod's eviction subresource."""
    return f"{pod_path(pod)}/eviction"


def eviction_of(pod: Pod, *, budgeted: bool = False, options: DrainOptions = NODE_MAINTENANCE) -> Object:
    """A policy/v1 Eviction of exactly this pod in exactly the state that we saw, with the grace period of the options.

    The uid keeps another pod of the same name safe. The version keeps two passes over one node, side by side or with
    a list from the cache, from evicting a pod twice: the first one changes it, and the second is refused. Not so behind
    a budget, which has counted the pod when the version is compared, and keeps the slot for two minutes; an eviction
    of a pod that is being deleted asks no budget.
    """
    metadata = pod["metadata"]
    counted = budgeted or (pod.get("status") or {}).get("phase") == "Pending"  # ready by then, and counted
    seen = {"uid": metadata["uid"], **({} if counted else {"resourceVersion": metadata["resourceVersion"]})}
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": seen, **grace_of(options)},
    }


def grace_of(options: DrainOptions) -> dict[str, int]:
    """The grace period as `DeleteOptions` have it; nothing where each pod has its own."""
    seconds = options.grace_period_seconds
    return {} if seconds is None else {"gracePeriodSeconds": seconds}


def is_by_admission(message: str) -> bool:
    """Whether an admission webhook refused: a 404 or 409 of it says nothing about the pod."""
    return message.startswith(ADMISSION)


def refusal_of(pod: Pod, status: int, words: str, body: Mapping[str, Any]) -> Blocked:
    """What an error of the eviction subresource means for the pod (X-6); the server's own words are kept.

    `status` is the HTTP status, `body` the `Status` object that came with it.
    """
    message = shortened(words, LONGEST_MESSAGE)
    causes = (body.get("details") or {}).get("causes") or []
    budget_cause = next((cause for cause in causes if cause.get("reason") == "DisruptionBudget"), None)
    if is_by_admission(message):
        return Blocked(identity(pod), "Forbidden" if status in FORBIDDEN else "Error", message)
    if status == 429 and budget_cause is None:  # the server's own limit of requests
        return Blocked(identity(pod), "Busy", message)
    if status == 429:
        text = shortened((budget_cause or {}).get("message") or message, LONGEST_MESSAGE)
        return Blocked(identity(pod), "DisruptionBudget", text, _budget_named(text))
    if status == 500 and "more than one PodDisruptionBudget" in message:
        return Blocked(identity(pod), "MultipleBudgets", message)
    if status == 504 and "due to conflicts" in message:  # it has tried twenty times, for ten seconds
        return Blocked(identity(pod), "Changing", message)
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return Blocked(identity(pod), "NamespaceTerminating", "its namespace is being deleted, and the pod with it")
    reason = "Forbidden" if status in FORBIDDEN else "Error"
    return Blocked(identity(pod), reason, message)


def refusal_of_deletion(pod: Pod, status: int, words: str, body: Mapping[str, Any]) -> Blocked:
    """The same for a pod that is deleted, not evicted: where the right is missing it names the remedy (DRN-1a)."""
    refusal = refusal_of(pod, status, words, body)
    if refusal.reason != "Forbidden" or is_by_admission(refusal.message):
        return refusal
    message = f"{refusal.message}: {DELETING}"
    return Blocked(refusal.pod, DISABLE_EVICTION, message)


def _budget_named(message: str) -> str:
    """The budget in "The disruption budget NAME needs 3 healthy pods and has 3 currently", "" when none is named."""
    words = message.split()
    return words[3] if message.startswith("The disruption budget ") and len(words) > 3 else ""
