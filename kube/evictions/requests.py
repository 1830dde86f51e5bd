"""Sends the eviction request of one pod, and interprets the API server's refusal (NMO-6)."""

from __future__ import annotations

import time
from enum import Enum

from kube.budgets import ESCALATION_REASON, BlockedPod, build_object_reference
from kube.client.api import Api, get_or_none
from kube.client.api_errors import ApiError, Conflict, NotFound, is_webhook_refusal
from kube.paths import Object
from kube.pods import DEFAULT_DRAIN_OPTIONS, DrainOptions, Pod, get_uid, is_terminating
from kube.text_limits import truncate

MAX_ATTEMPTS = 3
"""Maximum number of attempts to evict a pod that keeps changing; the next pass then evicts the pod."""
MAX_RETRY_SECONDS = 1.0
"""Seconds after which an eviction with a conflict is not retried, because the maintenance may have ended meanwhile.

The next pass reads the maintenance first, and then evicts the pod.
"""
MAX_MESSAGE_CHARACTERS = 1024
"""Maximum number of characters that are kept of an API server's message.

A webhook's message may have megabytes, and a maintenance's status lists hundreds of pods.
"""
FORBIDDEN_STATUSES = (401, 403)
BUDGET_REASON = "DisruptionBudget"
"""Reason of a pod that a PodDisruptionBudget blocks; the PDB then also blocks the other pods in its queue."""
DISABLE_EVICTION_REASON = "DisableEviction"
DELETION_REMEDY = "add manifests/components/deleting to the installation, or unset spec.drain.disableEviction"
ESCALATION_REMEDY = (
    "add manifests/components/deleting to the installation, or remove the step from spec.drain.escalation"
)


class Removal(Enum):
    """The outcome of an eviction that was not refused."""

    EVICTED = "the API server granted the eviction"
    ALREADY_GONE = "the pod was deleted, or another client evicted it"


async def send_eviction(api: Api, pod: Pod, options: DrainOptions, *, has_budget: bool) -> Removal | BlockedPod:
    """Evict the pod, or delete it with `disable_eviction` (DRN-1a); retry if the pod changes meanwhile.

    Returns a `BlockedPod` if the pod keeps changing. A deletion by an escalation step is not retried after a change,
    because the pod may have become ready. Raises `ApiError` for any other refusal.
    """
    began = time.monotonic()
    for _ in range(MAX_ATTEMPTS):
        try:
            await _send_request(api, pod, options, has_budget=has_budget)
        except NotFound:
            return Removal.ALREADY_GONE
        except Conflict:
            latest_pod = await get_or_none(api.get(build_pod_path(pod)))
            if latest_pod is None or get_uid(latest_pod) != get_uid(pod):
                return Removal.ALREADY_GONE
            if is_terminating(latest_pod) and not is_terminating(pod):
                return Removal.ALREADY_GONE
            pod = latest_pod  # the pod was modified but not replaced, so it must still be evicted
            if options.escalation_action or time.monotonic() - began > MAX_RETRY_SECONDS:
                break
        else:
            return Removal.EVICTED
    message = "the pod changed during its eviction; the next batch retries the eviction"
    return BlockedPod(build_object_reference(pod), "Changing", message)


async def _send_request(api: Api, pod: Pod, options: DrainOptions, *, has_budget: bool) -> None:
    if options.disable_eviction:
        version = pod["metadata"]["resourceVersion"]
        await api.delete(
            build_pod_path(pod), uid=get_uid(pod), resource_version=version, options=build_grace_options(options)
        )
    else:
        await api.create(build_eviction_path(pod), build_eviction(pod, has_budget=has_budget, options=options))


def build_pod_path(pod: Pod) -> str:
    """Return the API path of the pod."""
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def build_eviction_path(pod: Pod) -> str:
    """Return the API path of the pod's eviction subresource."""
    return f"{build_pod_path(pod)}/eviction"


def build_eviction(pod: Pod, *, has_budget: bool = False, options: DrainOptions = DEFAULT_DRAIN_OPTIONS) -> Object:
    """Build a policy/v1 Eviction of exactly this pod, with the grace period from `options`.

    The uid precondition protects a different pod with the same name. The resourceVersion precondition prevents two
    passes from evicting a pod twice, if they run concurrently or read a cached list. The first eviction changes the
    pod, so the API server rejects the second one.

    A pod under a PodDisruptionBudget (PDB) gets no resourceVersion precondition. The API server compares the version
    only after it has counted the pod against the PDB. A rejected eviction would use up one allowed disruption for two
    minutes. A second eviction of such a pod is harmless, because the API server does not check PDBs for a terminating
    pod.
    """
    metadata = pod["metadata"]
    # A PDB may also count a Pending pod, because the pod may become ready before the API server checks the PDB.
    is_counted = has_budget or (pod.get("status") or {}).get("phase") == "Pending"
    preconditions = {"uid": metadata["uid"], **({} if is_counted else {"resourceVersion": metadata["resourceVersion"]})}
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": preconditions, **build_grace_options(options)},
    }


def build_grace_options(options: DrainOptions) -> dict[str, int]:
    """Return the `DeleteOptions` field for the grace period; empty to use each pod's own grace period."""
    seconds = options.grace_period_seconds
    return {} if seconds is None else {"gracePeriodSeconds": seconds}


def interpret_error(pod: Pod, error: ApiError, options: DrainOptions = DEFAULT_DRAIN_OPTIONS) -> BlockedPod:
    """Convert an error of an eviction or deletion to a `BlockedPod` with the reason (X-6, DRN-1a).

    The message is the API server's own, except for a missing response or a terminating namespace. If the permission to
    delete pods is missing, the message contains the remedy.
    """
    reference, message = build_object_reference(pod), truncate(error.message, MAX_MESSAGE_CHARACTERS)
    causes = (error.body.get("details") or {}).get("causes") or []
    budget_cause = next((cause for cause in causes if cause.get("reason") == BUDGET_REASON), None)
    reason = "Forbidden" if error.status in FORBIDDEN_STATUSES else "Error"
    if not error.status:
        reason, message = "NoAnswer", "no response to the eviction request: the API server or a webhook is unavailable"
    elif options.escalation_action and error.status != 429:
        remedy = f": {ESCALATION_REMEDY}" if reason == "Forbidden" and not is_webhook_refusal(message) else ""
        reason, message = ESCALATION_REASON, f"escalation step {options.escalation_action}: {message}{remedy}"
    elif is_webhook_refusal(message):
        pass  # The webhook chose the HTTP status and the causes.
    elif budget_cause:  # with status 429, or with 403 if the budget's status must be recomputed first
        text = truncate(budget_cause.get("message") or message, MAX_MESSAGE_CHARACTERS)
        return BlockedPod(reference, BUDGET_REASON, text, _parse_budget_name(text))
    elif error.status == 429:  # the API server's own rate limit
        reason = "Busy"
    elif error.status == 500 and "more than one PodDisruptionBudget" in message:
        reason = "MultipleBudgets"
    elif error.status == 504 and "due to conflicts" in message:  # the API server gave up after 20 attempts in 10 s
        reason = "Changing"
    elif any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        reason, message = "NamespaceTerminating", "its namespace is being deleted, which deletes the pod"
    elif options.disable_eviction and reason == "Forbidden":
        reason, message = DISABLE_EVICTION_REASON, f"{message}: {DELETION_REMEDY}"
    return BlockedPod(reference, reason, message)


def _parse_budget_name(message: str) -> str:
    """Return the PodDisruptionBudget's name in the API server's message, "" if the message names none.

    The message is "The disruption budget NAME needs 3 healthy pods and has 3 currently".
    """
    words = message.split()
    return words[3] if message.startswith("The disruption budget ") and len(words) > 3 else ""
