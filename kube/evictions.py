"""Builds eviction requests, interprets refusals, and defines the outcome of a batch (NMO-6). Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kube.budgets import BlockedPod, EvictionPlan, build_object_reference
from kube.paths import Object
from kube.pods import DEFAULT_DRAIN_OPTIONS, DrainOptions, Pod
from kube.text_limits import truncate

MAX_MESSAGE_CHARACTERS = 1024
"""Maximum characters kept of an API server's message.

A webhook may send megabytes, and a status lists hundreds of pods.
"""
WEBHOOK_MESSAGE_PREFIX = "admission webhook"
"""Prefix of the messages with which admission webhooks deny a request; the HTTP status of a denial varies."""
FORBIDDEN_STATUSES = (401, 403)
DISABLE_EVICTION_REASON = "DisableEviction"
DELETION_REMEDY = "add manifests/components/deleting to the installation, or unset spec.drain.disableEviction"


@dataclass
class EvictionResult:
    """Outcome of one batch of evictions.

    Attributes:
        evicted: Pods whose eviction was granted, as `{namespace, name, uid}`.
        already_gone: Pods that were already deleted, or evicted by another pass.
        blocked: Pods that cannot be evicted now, with the reason.
        in_flight: Pods whose eviction was sent but not answered yet, or was granted after its batch ended. The next
            batch collects the outcome.
        deferred: Pods that the batch had no time to evict; the next batch may evict them immediately.
    """

    evicted: list[dict[str, str]] = field(default_factory=list)
    already_gone: list[dict[str, str]] = field(default_factory=list)
    blocked: list[BlockedPod] = field(default_factory=list)
    in_flight: list[dict[str, str]] = field(default_factory=list)
    deferred: list[Pod] = field(default_factory=list)


def split_off_pod(plan: EvictionPlan, pod_name: str) -> tuple[EvictionPlan, EvictionPlan]:
    """Split the plan into one without the pods named `pod_name`, and one with only these pods."""
    others = filter_plan(plan, lambda pod: pod["metadata"]["name"] != pod_name)
    own = filter_plan(plan, lambda pod: pod["metadata"]["name"] == pod_name)
    return others, replace(own, blocked=[])


def filter_plan(plan: EvictionPlan, predicate: Callable[[Pod], bool]) -> EvictionPlan:
    """Return the plan with its evictions limited to the pods that `predicate` accepts."""
    queues = {budget: list(filter(predicate, pods)) for budget, pods in plan.queues_by_budget.items()}
    nonempty_queues = {budget: pods for budget, pods in queues.items() if pods}
    return replace(plan, unbudgeted=list(filter(predicate, plan.unbudgeted)), queues_by_budget=nonempty_queues)


def build_pod_path(pod: Pod) -> str:
    """Return the API path of the pod."""
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def build_eviction_path(pod: Pod) -> str:
    """Return the API path of the pod's eviction subresource."""
    return f"{build_pod_path(pod)}/eviction"


def build_eviction(pod: Pod, *, has_pdb: bool = False, options: DrainOptions = DEFAULT_DRAIN_OPTIONS) -> Object:
    """Build a policy/v1 Eviction for exactly this pod, with the grace period from `options`.

    The uid precondition protects a different pod with the same name. The resourceVersion precondition prevents two
    passes from evicting a pod twice, whether they run concurrently or read a cached list. The first eviction changes
    the pod, so the API server rejects the second one.

    A pod under a budget gets no resourceVersion precondition. The API server compares the version only after it has
    counted the pod against the budget. A rejected eviction would use up one allowed disruption for two minutes. A
    second eviction is harmless there, because the API server does not check budgets for a terminating pod.
    """
    metadata = pod["metadata"]
    # A budget may also count a Pending pod, because the pod may become ready before the API server checks the budget.
    is_counted = has_pdb or (pod.get("status") or {}).get("phase") == "Pending"
    preconditions = {"uid": metadata["uid"], **({} if is_counted else {"resourceVersion": metadata["resourceVersion"]})}
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": preconditions, **build_grace_options(options)},
    }


def build_grace_options(options: DrainOptions) -> dict[str, int]:
    """Return the grace period in the form of `DeleteOptions`; empty to use each pod's own grace period."""
    seconds = options.grace_period_seconds
    return {} if seconds is None else {"gracePeriodSeconds": seconds}


def is_webhook_refusal(message: str) -> bool:
    """Return whether an admission webhook denied the request.

    The HTTP status of such a denial, for example 404 or 409, does not describe the pod.
    """
    return message.startswith(WEBHOOK_MESSAGE_PREFIX)


def interpret_eviction_error(pod: Pod, status: int, error_message: str, body: Mapping[str, Any]) -> BlockedPod:
    """Convert an error from the eviction subresource to the reason why the pod is blocked (X-6).

    `status` is the HTTP status, `body` the `Status` object in the response. The message is the API server's own, except
    for a namespace that is being deleted.
    """
    message = truncate(error_message, MAX_MESSAGE_CHARACTERS)
    causes = (body.get("details") or {}).get("causes") or []
    budget_cause = next((cause for cause in causes if cause.get("reason") == "DisruptionBudget"), None)
    if is_webhook_refusal(message):
        return BlockedPod(
            build_object_reference(pod), "Forbidden" if status in FORBIDDEN_STATUSES else "Error", message
        )
    if budget_cause:  # with status 429, or with 403 if the budget's status must be recomputed first
        text = truncate(budget_cause.get("message") or message, MAX_MESSAGE_CHARACTERS)
        return BlockedPod(build_object_reference(pod), "DisruptionBudget", text, _parse_budget_name(text))
    if status == 429:  # the API server's own rate limit
        return BlockedPod(build_object_reference(pod), "Busy", message)
    if status == 500 and "more than one PodDisruptionBudget" in message:
        return BlockedPod(build_object_reference(pod), "MultipleBudgets", message)
    if status == 504 and "due to conflicts" in message:  # the API server gave up after 20 attempts in 10 s
        return BlockedPod(build_object_reference(pod), "Changing", message)
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return BlockedPod(
            build_object_reference(pod), "NamespaceTerminating", "its namespace is being deleted, which deletes the pod"
        )
    reason = "Forbidden" if status in FORBIDDEN_STATUSES else "Error"
    return BlockedPod(build_object_reference(pod), reason, message)


def interpret_deletion_error(pod: Pod, status: int, error_message: str, body: Mapping[str, Any]) -> BlockedPod:
    """Convert an error from a pod's deletion to the reason why the pod is blocked (DRN-1a).

    If a permission is missing, the message contains the remedy.
    """
    refusal = interpret_eviction_error(pod, status, error_message, body)
    if refusal.reason != "Forbidden" or is_webhook_refusal(refusal.message):
        return refusal
    message = f"{refusal.message}: {DELETION_REMEDY}"
    return BlockedPod(refusal.pod, DISABLE_EVICTION_REASON, message)


def _parse_budget_name(message: str) -> str:
    """Return the name of the budget in the API server's message, "" if it names none.

    The message reads "The disruption budget NAME needs 3 healthy pods and has 3 currently".
    """
    words = message.split()
    return words[3] if message.startswith("The disruption budget ") and len(words) > 3 else ""
