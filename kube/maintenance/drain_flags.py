"""Drain options of a NodeMaintenance: which pods `spec.drain` covers, and which pods its flags block (DRN-1a).

Without `spec.drain`, the drain is like `kubectl drain --force --delete-emptydir-data --ignore-daemonsets`. If a flag
forbids the removal of one pod, kubectl aborts the whole drain. This project blocks only that pod, and evicts the other
pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from kube.budgets import BlockedPod, build_object_reference
from kube.maintenance.objects import Maintenance, get_blocked_pods, get_spec
from kube.paths import Object
from kube.pods import (
    DEFAULT_DRAIN_OPTIONS,
    DrainOptions,
    Pod,
    PodClassification,
    build_warning_line,
    classify_pods,
    format_key,
    get_uid,
    is_daemonset_pod,
    is_mirror_pod,
    is_terminating,
)
from kube.selectors import matches, parse_selector
from kube.times import parse_time

FORCE, DELETE_EMPTYDIR_DATA, IGNORE_DAEMONSETS = "Force", "DeleteEmptyDirData", "IgnoreDaemonSets"
POD_SELECTOR = "PodSelector"
"""Reasons of blocked pods: the flag that would allow the pod's eviction, or the invalid selector."""
UNSELECTED_MESSAGE, SKIPPED_MESSAGE = "not selected", "terminating for longer than skipWaitForDeleteTimeoutSeconds"
"""Reasons why a drain does not cover a pod: its labels do not match, or kubectl would not wait for it either."""
STATIC_POD_REASON, DAEMON_SET_REASON = "static pod", "pod of a DaemonSet"
"""Reasons why a pod stays on the node regardless of the flags."""
REMEDIES = {
    IGNORE_DAEMONSETS: "its DaemonSet would recreate it on this node immediately: set spec.drain.ignoreDaemonSets, "
    "or exclude the node from the DaemonSet",
    DELETE_EMPTYDIR_DATA: "its emptyDir data would be lost: set spec.drain.deleteEmptyDirData, or delete the pod",
    FORCE: "no controller would recreate it: set spec.drain.force, or delete the pod",
}


def parse_drain_options(maintenance: Maintenance) -> DrainOptions:
    """Parse `spec.drain`; a field that is unset or has the wrong type keeps its default.

    A field can have a wrong type only if the CRD's schema did not validate the object.
    """
    drain = get_spec(maintenance).get("drain")
    if not isinstance(drain, dict):
        return DEFAULT_DRAIN_OPTIONS
    grace, skip = (_parse_seconds(drain, name) for name in ("gracePeriodSeconds", "skipWaitForDeleteTimeoutSeconds"))
    return DrainOptions(
        force=_parse_flag(drain, "force", default=True),
        ignore_daemonsets=_parse_flag(drain, "ignoreDaemonSets", default=True),
        delete_emptydir_data=_parse_flag(drain, "deleteEmptyDirData", default=True),
        pod_selector=str(drain.get("podSelector") or ""),
        grace_period_seconds=grace if grace >= 0 else None,
        disable_eviction=_parse_flag(drain, "disableEviction", default=False),
        skip_wait_seconds=max(0, skip),
    )


def _parse_flag(drain: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = drain.get(name)
    return value if isinstance(value, bool) else default


def _parse_seconds(drain: Mapping[str, Any], name: str) -> int:
    value = drain.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def classify_for_drain(
    pods: Iterable[Pod], options: DrainOptions, now: datetime, orphan_uids: Collection[str] = ()
) -> PodClassification:
    """Classify the pods that the drain covers by what it does with them.

    `get_exclusion_reason` determines which pods the drain covers. An invalid selector covers all pods;
    `find_pods_blocked_by_flags` then blocks them.
    """
    return classify_pods([pod for pod in pods if not get_exclusion_reason(pod, options, now)], options, orphan_uids)


def get_exclusion_reason(pod: Pod, options: DrainOptions, now: datetime) -> str:
    """Return the reason why the drain does not cover the pod, "" if it does."""
    if not _matches_pod_selector(options, pod):
        return UNSELECTED_MESSAGE
    return SKIPPED_MESSAGE if _is_deletion_overdue(pod, options, now) else ""


def explain_ignored_pods(
    pods: Iterable[Pod], classification: PodClassification, options: DrainOptions, now: datetime
) -> list[tuple[Pod, str]]:
    """Return the pods that stay on the node, each with the reason."""
    leaving_uids = {get_uid(pod) for pod in classification.leaving}
    ignored = [pod for pod in pods if get_uid(pod) not in leaving_uids]
    reasons = (
        STATIC_POD_REASON if is_mirror_pod(pod) else get_exclusion_reason(pod, options, now) or DAEMON_SET_REASON
        for pod in ignored
    )
    return list(zip(ignored, reasons, strict=True))


def _matches_pod_selector(options: DrainOptions, pod: Pod) -> bool:
    selector, _ = _parse_pod_selector(options.pod_selector)
    return matches(selector, pod["metadata"].get("labels") or {})


@lru_cache(maxsize=256)
def _parse_pod_selector(query: str) -> tuple[Mapping[str, Any], str]:
    """Parse a pod selector; return the selector and an error message, which is "" if the selector is valid.

    The selector of an invalid query matches all pods. The result is cached, because a user's selector may be long and
    is evaluated for each pod.
    """
    try:
        return parse_selector(query), ""
    except ValueError as error:
        return {}, f"spec.drain.podSelector cannot be read: {error}; correct the selector, or omit the field"


def _is_deletion_overdue(pod: Pod, options: DrainOptions, now: datetime) -> bool:
    """Return whether the pod's deletion is overdue by more than `skip_wait_seconds`.

    As in kubectl, the time is rounded down to whole seconds.
    """
    if not options.skip_wait_seconds or not is_terminating(pod):
        return False
    overdue = now - parse_time(pod["metadata"]["deletionTimestamp"])
    return int(overdue.total_seconds()) > options.skip_wait_seconds


def find_pods_blocked_by_flags(classification: PodClassification, options: DrainOptions) -> list[BlockedPod]:
    """Return the leaving pods that a flag blocks, each with the first such flag in kubectl's order.

    A terminating pod is never blocked. An invalid selector blocks all other pods.
    """
    refusal_by_uid = _map_flag_refusals(classification, options)
    return [
        BlockedPod(build_object_reference(pod), *refusal_by_uid[get_uid(pod)])
        for pod in classification.leaving
        if get_uid(pod) in refusal_by_uid and not is_terminating(pod)
    ]


def _map_flag_refusals(classification: PodClassification, options: DrainOptions) -> dict[str, tuple[str, str]]:
    """Return each blocking flag and its remedy by the pod's uid; terminating pods are included."""
    _, selector_error = _parse_pod_selector(options.pod_selector)
    flags = {
        IGNORE_DAEMONSETS: () if options.ignore_daemonsets else classification.daemonset_pods,
        DELETE_EMPTYDIR_DATA: () if options.delete_emptydir_data else classification.with_local_storage,
        FORCE: () if options.force else classification.bare,
    }
    refusal_by_uid = {get_uid(pod): (flag, REMEDIES[flag]) for flag in reversed(flags) for pod in flags[flag]}
    if selector_error:
        refusal_by_uid = {get_uid(pod): (POD_SELECTOR, selector_error) for pod in classification.leaving}
    return refusal_by_uid


def select_evictable_pods(classification: PodClassification, options: DrainOptions) -> list[Pod]:
    """Return the leaving pods that no flag blocks; flags never block terminating pods, because those already leave."""
    refused_uids = {item.pod["uid"] for item in find_pods_blocked_by_flags(classification, options)}
    return [pod for pod in classification.leaving if get_uid(pod) not in refused_uids]


def select_permitted_pods(classification: PodClassification, options: DrainOptions) -> list[Pod]:
    """Return the leaving pods that no flag forbids to remove; flags apply to terminating pods, too."""
    refusal_by_uid = _map_flag_refusals(classification, options)
    return [pod for pod in classification.leaving if get_uid(pod) not in refusal_by_uid]


def find_reported_orphan_uids(pods: Iterable[Pod], blocked: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the uids of the DaemonSet pods that `blocked` lists with the reason `Force`.

    `Force` blocks a DaemonSet pod only if its DaemonSet was deleted.
    """
    named = {f"{item['namespace']}/{item['name']}" for item in blocked if item["reason"] == FORCE}
    return {get_uid(pod) for pod in pods if is_daemonset_pod(pod) and format_key(pod) in named}


def are_refusals_reported(refusals: Iterable[BlockedPod], maintenance: Maintenance) -> bool:
    """Return whether the status already lists all these refusals, so that no report is needed."""
    reported = {(item["namespace"], item["name"], item["reason"]) for item in get_blocked_pods(maintenance)}
    return all((item.pod["namespace"], item.pod["name"], item.reason) in reported for item in refusals)


def build_drain_warning(classification: PodClassification, options: DrainOptions) -> str:
    """Return the warning to log before the first eviction (NMO-8a), "" if there is nothing to warn about.

    The warning names DaemonSet pods that stay on the node, and pods to evict that no controller would recreate.
    """
    leaving = {get_uid(pod) for pod in select_evictable_pods(classification, options)}
    daemons = classification.daemonset_pods if options.ignore_daemonsets else []
    return build_warning_line(
        PodClassification(daemonset_pods=daemons, bare=[pod for pod in classification.bare if get_uid(pod) in leaving])
    )


def build_drain_spec(options: Mapping[str, object]) -> Object:
    """Build the field `drain` of a spec from the options that are set; {} if all options are None."""
    given = {name: value for name, value in options.items() if value is not None}
    return {"drain": given} if given else {}
