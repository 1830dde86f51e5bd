"""Eviction requests, the meaning of refused evictions, and the outcome of a batch (NMO-6). Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kube.budgets import Blocked, Plan, identity
from kube.paths import Object
from kube.pods import NODE_MAINTENANCE, DrainOptions, Pod
from kube.text_limits import shortened

LONGEST_MESSAGE = 1024
"""Maximum characters kept of an API server's message.

A webhook may send megabytes, and a status lists hundreds of pods.
"""
ADMISSION = "admission webhook"
"""Prefix of the messages in which admission webhooks deny a request; their HTTP status can be any."""
FORBIDDEN = (401, 403)
DISABLE_EVICTION = "DisableEviction"
DELETING = "add manifests/components/deleting to the installation, or unset spec.drain.disableEviction"


@dataclass
class Batch:
    """Outcome of one batch of evictions.

    Attributes:
        evicted: Pods whose eviction was granted, as `{namespace, name, uid}`.
        gone: Pods that were already deleted, or evicted by another pass.
        blocked: Pods that cannot be evicted now, with the reason.
        under_way: Pods whose eviction was sent and is unanswered. The next batch takes the outcome.
        unsent: Pods that the batch had no time for. They may be evicted at once.
    """

    evicted: list[dict[str, str]] = field(default_factory=list)
    gone: list[dict[str, str]] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    under_way: list[dict[str, str]] = field(default_factory=list)
    unsent: list[Pod] = field(default_factory=list)


def set_apart(plan: Plan, name: str) -> tuple[Plan, Plan]:
    """Split the plan into one without the pods named `name`, and one with only those and nothing blocked."""
    others = only(plan, lambda pod: pod["metadata"]["name"] != name)
    own = only(plan, lambda pod: pod["metadata"]["name"] == name)
    return others, replace(own, blocked=[])


def only(plan: Plan, wanted: Callable[[Pod], bool]) -> Plan:
    """Return the plan with its evictions limited to the pods that `wanted` accepts."""
    queues = {budget: list(filter(wanted, pods)) for budget, pods in plan.queues.items()}
    full = {budget: pods for budget, pods in queues.items() if pods}
    return replace(plan, free=list(filter(wanted, plan.free)), queues=full)


def pod_path(pod: Pod) -> str:
    """Return the path of the pod."""
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def eviction_path(pod: Pod) -> str:
    """Return the path of the pod's eviction subresource."""
    return f"{pod_path(pod)}/eviction"


def eviction_of(pod: Pod, *, budgeted: bool = False, options: DrainOptions = NODE_MAINTENANCE) -> Object:
    """Build a policy/v1 Eviction of exactly this pod, with the grace period of the options.

    The uid precondition protects another pod of the same name. The resourceVersion precondition prevents two passes
    from evicting a pod twice, whether they run concurrently or read a cached list. The first eviction changes the pod,
    so the API server rejects the second one.

    A pod under a budget gets no resourceVersion precondition. The API server compares the version only after it has
    counted the pod against the budget, and a rejected eviction would use up one allowed disruption for two minutes. A
    second eviction is harmless there, because the API server checks no budget for a terminating pod.
    """
    metadata = pod["metadata"]
    counted = budgeted or (pod.get("status") or {}).get("phase") == "Pending"  # it may become ready and be counted
    seen = {"uid": metadata["uid"], **({} if counted else {"resourceVersion": metadata["resourceVersion"]})}
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": seen, **grace_of(options)},
    }


def grace_of(options: DrainOptions) -> dict[str, int]:
    """Return the grace period in the form of `DeleteOptions`; empty to use each pod's own grace period."""
    seconds = options.grace_period_seconds
    return {} if seconds is None else {"gracePeriodSeconds": seconds}


def is_by_admission(message: str) -> bool:
    """Return whether an admission webhook denied the request.

    The HTTP status of such a denial, for example 404 or 409, does not describe the pod.
    """
    return message.startswith(ADMISSION)


def refusal_of(pod: Pod, status: int, words: str, body: Mapping[str, Any]) -> Blocked:
    """Convert an error of the eviction subresource to the reason why the pod is blocked (X-6).

    `status` is the HTTP status, `body` the `Status` object of the response. The message is the API server's own, except
    for a namespace that is being deleted.
    """
    message = shortened(words, LONGEST_MESSAGE)
    causes = (body.get("details") or {}).get("causes") or []
    budget_cause = next((cause for cause in causes if cause.get("reason") == "DisruptionBudget"), None)
    if is_by_admission(message):
        return Blocked(identity(pod), "Forbidden" if status in FORBIDDEN else "Error", message)
    if status == 429 and budget_cause is None:  # the API server's own rate limit
        return Blocked(identity(pod), "Busy", message)
    if status == 429:
        text = shortened((budget_cause or {}).get("message") or message, LONGEST_MESSAGE)
        return Blocked(identity(pod), "DisruptionBudget", text, _budget_named(text))
    if status == 500 and "more than one PodDisruptionBudget" in message:
        return Blocked(identity(pod), "MultipleBudgets", message)
    if status == 504 and "due to conflicts" in message:  # after twenty attempts in ten seconds
        return Blocked(identity(pod), "Changing", message)
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return Blocked(identity(pod), "NamespaceTerminating", "its namespace is being deleted, and the pod with it")
    reason = "Forbidden" if status in FORBIDDEN else "Error"
    return Blocked(identity(pod), reason, message)


def refusal_of_deletion(pod: Pod, status: int, words: str, body: Mapping[str, Any]) -> Blocked:
    """Convert an error of a pod's deletion; a missing permission gets a message with the remedy (DRN-1a)."""
    refusal = refusal_of(pod, status, words, body)
    if refusal.reason != "Forbidden" or is_by_admission(refusal.message):
        return refusal
    message = f"{refusal.message}: {DELETING}"
    return Blocked(refusal.pod, DISABLE_EVICTION, message)


def _budget_named(message: str) -> str:
    """Return the budget that the API server's message names, "" if it names none.

    The message reads "The disruption budget NAME needs 3 healthy pods and has 3 currently".
    """
    words = message.split()
    return words[3] if message.startswith("The disruption budget ") and len(words) > 3 else ""
