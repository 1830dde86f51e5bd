"""Builds the entries of `status.blockedPods`, and computes the backoff of blocked pods (design rule 9).

A pod is in backoff if its eviction was refused, or if its controller recreates it on the same node. The backoff grows
with the time since the first refusal or since the cordon, up to one minute. All functions and processes compute the
same backoff, because it depends only on timestamps in the objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from kube.budgets import ESCALATION_REASON, VIRT_LAUNCHER_REASONS, BlockedPod, build_object_reference
from kube.maintenance.objects import (
    Maintenance,
    get_blocked_pods,
    get_condition,
    get_group,
    is_reported_cordoned,
    is_spec_changed,
)
from kube.nodes import NO_SCHEDULE, UNSCHEDULABLE_TAINT
from kube.paths import Object
from kube.pods import (
    Pod,
    build_name_reference,
    format_key,
    get_controller,
    is_finished,
    is_terminating,
    list_pvc_names,
    tolerates,
    tolerates_everything,
)
from kube.text_limits import truncate
from kube.times import format_time, parse_time, parse_time_or_none

MAX_NAMED_PODS = 5
"""Maximum number of blocked pods that `format_summary` names."""
MAX_MESSAGE_CHARACTERS = 1024
"""Maximum length of a blocked pod's message, in characters."""
REMOVAL_TOLERANCE = timedelta(seconds=10)
"""Time that a busy kubelet may need after the grace period to kill the containers and remove the pod."""
MIN_BACKOFF, MAX_BACKOFF = timedelta(seconds=10), timedelta(seconds=60)
"""Minimum and maximum backoff.

A pod that its controller recreates immediately is evicted at most four times in the first minute, then once a minute.
"""
NODE_UNREACHABLE = "NodeUnreachable"
"""Reason of a stuck pod on a node whose Ready condition is Unknown, because its kubelet sends no heartbeats."""
SCHEDULING_GRACE = timedelta(seconds=2)
"""Time after the cordon in which kube-scheduler may still bind pods that it was already scheduling."""
BUDGET_REASONS = ("DisruptionBudget", "MultipleBudgets", *VIRT_LAUNCHER_REASONS)
"""Reasons without a backoff: a change of the PodDisruptionBudget triggers the next eviction attempt."""
REFUSAL_REASONS = ("Error", "Forbidden", ESCALATION_REASON)
"""Reasons of pods whose eviction or deletion was refused."""
UNDECIDED_REASONS = ("NoAnswer", "Changing", "Busy", "NoTime")
"""Reasons of evictions that failed without a refusal; the next pass retries them if this one evicted other pods."""


def build_blocked_pods(
    reported: Iterable[Mapping[str, Any]],
    previous: Iterable[Mapping[str, Any]],
    pending: Collection[Pod],
    now: datetime,
    *,
    is_node_unreachable: bool | None = None,
) -> list[Object]:
    """Build the entries of `status.blockedPods`, sorted by namespace and name.

    These are the `reported` pods that are still pending and not terminating, and terminating pods that are stuck or
    that an escalation step may not delete. An entry keeps its `since` from `previous` if the pod was already blocked
    for the same reason; otherwise, `since` is `now`. `is_node_unreachable` is None if the node was not read; then the
    node's state in `previous` still counts.
    """
    previous = list(previous)
    if is_node_unreachable is None:
        is_node_unreachable = any(item.get("reason") == NODE_UNREACHABLE for item in previous)
    waiting = {format_key(pod) for pod in pending if not is_terminating(pod)}
    deletable = {format_key(pod) for pod in pending}
    items = [{k: v for k, v in item.items() if k != "uid"} for item in reported]
    items = [{**item, "message": truncate(str(item.get("message") or ""), MAX_MESSAGE_CHARACTERS)} for item in items]
    items = [
        item
        for item in items
        if f"{item['namespace']}/{item['name']}" in (deletable if item["reason"] == ESCALATION_REASON else waiting)
    ]
    listed = {f"{item['namespace']}/{item['name']}" for item in items}
    stuck_pods = (
        _build_stuck_pod(pod, now, is_node_unreachable=is_node_unreachable)
        for pod in pending
        if format_key(pod) not in listed
    )
    items += [stuck for stuck in stuck_pods if stuck]
    since = {get_blocking_key(item): parse_time_or_none(item.get("since")) for item in previous}
    dated = [{**item, "since": format_time(since.get(get_blocking_key(item)) or now)} for item in items]
    return sorted(dated, key=lambda item: (item["namespace"], item["name"]))


def get_blocking_key(blocked_pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what identifies an entry of `status.blockedPods`: the pod, the cause and the PodDisruptionBudget."""
    namespace, name, reason, budget = (blocked_pod.get(field) for field in ("namespace", "name", "reason", "budget"))
    return namespace, name, get_blocking_cause(reason), budget


def get_blocking_cause(reason: object) -> str:
    """Return the reason, or "Refused" for the reasons that alternate during an escalation step.

    If both the eviction and the deletion of a pod are refused, the reason changes with every attempt. The time since
    which the pod is blocked must not change with it.
    """
    return "Refused" if reason in REFUSAL_REASONS else str(reason)


def is_recreated_on_node(pod: Pod, maintenance: Maintenance, now: datetime) -> bool:
    """Return whether the pod's controller would recreate the pod on this node after an eviction."""
    return _build_blocked_if_recreated(pod, maintenance, now) is not None


def format_summary(blocked: Iterable[BlockedPod]) -> str:
    """Summarize blocked pods for `status.lastError` in one line: the first five names, grouped by message."""
    named = sorted((item.key, item.message) for item in blocked)
    names_by_message: dict[str, list[str]] = {}
    for name, message in named[:MAX_NAMED_PODS]:
        names_by_message.setdefault(message, []).append(name)
    suffix = [f"and {len(named) - MAX_NAMED_PODS} more"] if len(named) > MAX_NAMED_PODS else []
    return "; ".join([*(f"{', '.join(names)}: {message}" for message, names in names_by_message.items()), *suffix])


def _build_stuck_pod(pod: Pod, now: datetime, *, is_node_unreachable: bool) -> Object | None:
    """Build the status entry of a pod that outlived its grace period; return None if the pod is not stuck.

    The API server sets a pod's deletionTimestamp to the end of its grace period.
    """
    end = parse_time_or_none(pod["metadata"].get("deletionTimestamp"))
    if not end or now <= end + REMOVAL_TOLERANCE:
        return None
    reason, message = _explain_stuck_pod(pod, is_node_unreachable=is_node_unreachable)
    return {**build_name_reference(pod), "reason": reason, "message": message, "budget": ""}


def _explain_stuck_pod(pod: Pod, *, is_node_unreachable: bool) -> tuple[str, str]:
    """Return the reason and the message why a pod that outlived its grace period still exists.

    A kubelet removes a pod only after it has unmounted the pod's volumes. Before that, when all containers have
    terminated, the kubelet sets the phase to Succeeded or Failed.
    """
    if finalizers := pod["metadata"].get("finalizers"):
        names = truncate(", ".join(finalizers), MAX_MESSAGE_CHARACTERS)
        return "Finalizers", f"finalizers {names} delay the deletion of the pod: their controllers must remove them"
    if is_node_unreachable:
        return (
            NODE_UNREACHABLE,
            "its grace period has ended, and the kubelet of its node does not respond: repair the node",
        )
    if not is_finished(pod):
        return "Terminating", "its grace period has ended and the kubelet has not stopped it: check the node"
    claims = list_pvc_names(pod)
    names = truncate(", ".join(claims), MAX_MESSAGE_CHARACTERS)
    volumes = f"the volumes bound to its PVCs {names}" if claims else "its volumes"
    return "VolumesMounted", f"its containers have ended, but the kubelet has not unmounted {volumes}: check the node"


def compute_backoff(elapsed: timedelta) -> timedelta:
    """Return the elapsed time within the bounds, so that each backoff is about twice as long as the previous one."""
    return min(max(elapsed, MIN_BACKOFF), MAX_BACKOFF)


def is_backing_off(kubernetes_event: Mapping[str, Any] | None, now: datetime) -> bool:
    """Return whether the repeated repair of a node is in backoff and must wait for a later `resync`.

    `kubernetes_event` is the Event whose count is the number of repairs, None if there is none.
    """
    if kubernetes_event is None:
        return False
    first, last = (parse_time_or_none(kubernetes_event.get(name)) for name in ("firstTimestamp", "lastTimestamp"))
    return bool(first and last and abs(now - last) < compute_backoff(last - first))  # abs(): clocks may be set back


def split_due_pods(pods: Iterable[Pod], maintenance: Maintenance, now: datetime) -> tuple[list[Pod], list[BlockedPod]]:
    """Split the pods into those that may be evicted now and those in backoff, which get a `BlockedPod`.

    A refusal that was reported for an older spec causes no backoff (DRN-1a).
    """
    due: list[Pod] = []
    backing_off: list[BlockedPod] = []
    reported = [] if is_spec_changed(maintenance) else get_blocked_pods(maintenance)
    reported_by_name = {(item["namespace"], item["name"]): item for item in reported}
    for pod in pods:
        metadata = pod["metadata"]
        refusal = reported_by_name.get((metadata["namespace"], metadata["name"]))
        reasons = [_build_reported_refusal(pod, refusal, now)]
        if not is_terminating(pod):
            reasons.append(_build_blocked_if_recreated(pod, maintenance, now))
        blocked = [reason for reason in reasons if reason and now < parse_time(reason.retry_after)]
        if blocked:
            backing_off.append(blocked[-1])
        else:
            due.append(pod)
    return due, backing_off


def add_retry_after(blocked: Iterable[BlockedPod], maintenance: Maintenance, now: datetime) -> list[BlockedPod]:
    """Return the blocked pods, each with `retry_after` unless a PodDisruptionBudget blocks it or it is already set."""
    since_by_key = _map_blocked_since(maintenance)
    return [_add_retry_after(item, since_by_key.get(_build_cause_key(item)), now) for item in blocked]


def was_blocked_by_same_cause(blocked_pod: BlockedPod, maintenance: Maintenance) -> bool:
    """Return whether the status already lists the pod as blocked by the same cause."""
    return _build_cause_key(blocked_pod) in _map_blocked_since(maintenance)


def _build_cause_key(blocked_pod: BlockedPod) -> tuple[str, str, str]:
    return blocked_pod.pod["namespace"], blocked_pod.pod["name"], get_blocking_cause(blocked_pod.reason)


def _map_blocked_since(maintenance: Maintenance) -> dict[tuple[str, str, str], object]:
    """Return the time since which the status lists a pod as blocked, by namespace, name and cause."""
    return {
        (item["namespace"], item["name"], get_blocking_cause(item["reason"])): item.get("since")
        for item in get_blocked_pods(maintenance)
    }


def _add_retry_after(blocked_pod: BlockedPod, since: object, now: datetime) -> BlockedPod:
    if blocked_pod.reason in BUDGET_REASONS or blocked_pod.retry_after:
        return blocked_pod
    began = parse_time_or_none(since)
    elapsed = now - began if began else timedelta()
    return replace(blocked_pod, retry_after=format_time(now + compute_backoff(elapsed)))


def _build_reported_refusal(pod: Pod, reported: Mapping[str, Any] | None, now: datetime) -> BlockedPod | None:
    """Return the pod's refusal in the status as a `BlockedPod`, None if it has no plausible retry time.

    A retry time more than twice `MAX_BACKOFF` in the future comes from a wrong clock and is ignored.
    """
    retry_after = parse_time_or_none(reported.get("retryAfter")) if reported else None
    if reported is None or retry_after is None or retry_after > now + 2 * MAX_BACKOFF:
        return None
    reason, message = str(reported["reason"]), str(reported.get("message") or "")
    if is_terminating(pod) and reason != ESCALATION_REASON:  # Only an escalation step acts on a terminating pod.
        return None
    return BlockedPod(build_object_reference(pod), reason, message, retry_after=format_time(retry_after))


def _get_cordoned_since(maintenance: Maintenance, now: datetime) -> datetime | None:
    """Return the time since which the node has accepted only pods that tolerate its taints, None if unknown.

    This is the maintenance's creation time if the status does not report the cordon yet. It is also the creation time
    if the reported time is in the future, because its writer's clock was wrong.
    """
    transition_time = (
        get_condition(maintenance, "Cordoned").get("lastTransitionTime") if is_reported_cordoned(maintenance) else None
    )
    cordoned = parse_time_or_none(transition_time)
    if cordoned is not None and cordoned <= now:
        return cordoned
    return parse_time_or_none(maintenance["metadata"].get("creationTimestamp"))


def _build_blocked_if_recreated(pod: Pod, maintenance: Maintenance, now: datetime) -> BlockedPod | None:
    """Build a `BlockedPod` if a controller created the pod on this node after the cordon; otherwise return None.

    Such a pod tolerates the taints or bypassed kube-scheduler, so its controller would recreate it here after an
    eviction. A pod that was scheduled while another client had uncordoned the node is treated the same way.

    Kubernetes timestamps have a resolution of one second. A pod that was created in the second of the cordon counts as
    created after it, because a pod may be recreated many times in one second.
    """
    owner, cordoned_since = get_controller(pod), _get_cordoned_since(maintenance, now)
    if owner is None or cordoned_since is None:
        return None
    created = parse_time(pod["metadata"]["creationTimestamp"])
    taints = (get_group(maintenance).drain_taint, UNSCHEDULABLE_TAINT)
    controller_name = f"{owner['kind']} {owner['name']}"
    if created >= cordoned_since and all(tolerates(pod, taint, NO_SCHEDULE) for taint in taints):
        tolerated = "every taint" if tolerates_everything(pod) else "the taints of the maintenance"
        message = (
            f"tolerates {tolerated}, so {controller_name} recreates it on this node: "
            "remove the toleration, or scale the controller down"
        )
    elif created - cordoned_since >= SCHEDULING_GRACE and is_reported_cordoned(maintenance):
        message = (
            "was created on this node after the cordon, or while another client had uncordoned the node; "
            f"if the pod template of {controller_name}, or of its owner, sets spec.nodeName, "
            "remove that field, or scale the owner down"
        )
    else:
        return None
    return BlockedPod(
        build_object_reference(pod),
        "Returns",
        message,
        retry_after=format_time(created + compute_backoff(created - cordoned_since)),
    )
