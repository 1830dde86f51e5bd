"""Drain options of a NodeMaintenance: which pods `spec.drain` covers, and which pods its flags block (DRN-1a).

Without `spec.drain`, a maintenance drains like `kubectl drain --force --delete-emptydir-data --ignore-daemonsets`. If a
flag forbids the removal of one pod, kubectl aborts the whole drain. Here only that pod is blocked, and the others are
evicted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from kube.budgets import Blocked, identity
from kube.maintenance.objects import Maintenance, blocked_pods, spec_of
from kube.paths import Object
from kube.pods import NODE_MAINTENANCE, DrainOptions, Pod, Sorted, is_daemon, is_terminating, key, sort, uid, warning
from kube.selectors import matches, parsed
from kube.times import moment

FORCE, DELETE_EMPTYDIR_DATA, IGNORE_DAEMONSETS = "Force", "DeleteEmptyDirData", "IgnoreDaemonSets"
POD_SELECTOR = "PodSelector"
"""Reasons of blocked pods: the flag that blocks them, or the invalid selector."""
UNSELECTED, SKIPPED = "not selected", "ending for longer than is waited for"
"""Reasons why a drain does not cover a pod."""
REMEDIES = {
    IGNORE_DAEMONSETS: "its DaemonSet makes it again here at once: set spec.drain.ignoreDaemonSets, "
    "or keep the DaemonSet off the node",
    DELETE_EMPTYDIR_DATA: "its emptyDir data would be lost: set spec.drain.deleteEmptyDirData, or delete it",
    FORCE: "no controller makes it again: set spec.drain.force, or delete it",
}


def options_of(maintenance: Maintenance) -> DrainOptions:
    """Return the drain options from `spec.drain`; a field that is unset or of the wrong type keeps its default.

    Wrong types are possible only if the CRD's schema did not validate the object.
    """
    drain = spec_of(maintenance).get("drain")
    if not isinstance(drain, dict):
        return NODE_MAINTENANCE
    grace, skip = (_seconds(drain, name) for name in ("gracePeriodSeconds", "skipWaitForDeleteTimeoutSeconds"))
    return DrainOptions(
        force=_flag(drain, "force", default=True),
        ignore_daemonsets=_flag(drain, "ignoreDaemonSets", default=True),
        delete_emptydir_data=_flag(drain, "deleteEmptyDirData", default=True),
        pod_selector=str(drain.get("podSelector") or ""),
        grace_period_seconds=grace if grace >= 0 else None,
        disable_eviction=_flag(drain, "disableEviction", default=False),
        skip_wait_seconds=max(0, skip),
    )


def _flag(drain: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = drain.get(name)
    return value if isinstance(value, bool) else default


def _seconds(drain: Mapping[str, Any], name: str) -> int:
    value = drain.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def sorted_for(pods: Iterable[Pod], options: DrainOptions, now: datetime, orphans: Collection[str] = ()) -> Sorted:
    """Classify the node's pods by what the drain does with them, without the pods that `left_out` excludes.

    An invalid selector selects all pods; `refused` then blocks them.
    """
    return sort([pod for pod in pods if not left_out(pod, options, now)], options, orphans)


def left_out(pod: Pod, options: DrainOptions, now: datetime) -> str:
    """Return the reason why the drain does not cover the pod, "" if it does."""
    if not _selects(options, pod):
        return UNSELECTED
    return SKIPPED if _is_skipped(pod, options, now) else ""


def _selects(options: DrainOptions, pod: Pod) -> bool:
    selector, _ = _read(options.pod_selector)
    return matches(selector, pod["metadata"].get("labels") or {})


@lru_cache(maxsize=256)
def _read(query: str) -> tuple[Mapping[str, Any], str]:
    """Parse a pod selector; return the selector and an error message, which is "" if the selector is valid.

    For an invalid query, the selector matches all pods. The result is cached, because a user's selector may be long and
    is needed for each pod.
    """
    try:
        return parsed(query), ""
    except ValueError as error:
        return {}, f"spec.drain.podSelector cannot be read: {error}; correct it, or leave it out"


def _is_skipped(pod: Pod, options: DrainOptions, now: datetime) -> bool:
    """Return whether the pod's deletion is overdue by more than `skip_wait_seconds`.

    As in kubectl, the overdue time is rounded down to whole seconds.
    """
    if not options.skip_wait_seconds or not is_terminating(pod):
        return False
    late = now - moment(pod["metadata"]["deletionTimestamp"])
    return int(late.total_seconds()) > options.skip_wait_seconds


def refused(found: Sorted, options: DrainOptions) -> list[Blocked]:
    """Return the `leaving` pods that a flag blocks, each with the first such flag in kubectl's order.

    A terminating pod is never blocked. An invalid selector blocks all other pods.
    """
    _, broken = _read(options.pod_selector)
    flags = {
        IGNORE_DAEMONSETS: () if options.ignore_daemonsets else found.daemons,
        DELETE_EMPTYDIR_DATA: () if options.delete_emptydir_data else found.local,
        FORCE: () if options.force else found.bare,
    }
    why = {uid(pod): (flag, REMEDIES[flag]) for flag in reversed(flags) for pod in flags[flag]}
    if broken:
        why = {uid(pod): (POD_SELECTOR, broken) for pod in found.leaving}
    return [
        Blocked(identity(pod), *why[uid(pod)]) for pod in found.leaving if uid(pod) in why and not is_terminating(pod)
    ]


def going(found: Sorted, options: DrainOptions) -> list[Pod]:
    """Return the `leaving` pods that no flag blocks."""
    out = {item.pod["uid"] for item in refused(found, options)}
    return [pod for pod in found.leaving if uid(pod) not in out]


def known_orphans(pods: Iterable[Pod], blocked: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the uids of the DaemonSet pods that `blocked` lists with the reason `Force`.

    `Force` can block a DaemonSet pod only if its DaemonSet no longer exists.
    """
    named = {f"{item['namespace']}/{item['name']}" for item in blocked if item["reason"] == FORCE}
    return {uid(pod) for pod in pods if is_daemon(pod) and key(pod) in named}


def are_told(refusals: Iterable[Blocked], maintenance: Maintenance) -> bool:
    """Return whether the status already lists all `refusals` with their reasons, so that no pass has to check them."""
    told = {(item["namespace"], item["name"], item["reason"]) for item in blocked_pods(maintenance)}
    return all((item.pod["namespace"], item.pod["name"], item.reason) in told for item in refusals)


def warned(found: Sorted, options: DrainOptions) -> str:
    """Return the warning to log before the first eviction (NMO-8a), "" for none.

    It names the DaemonSet pods that stay on the node, and the evicted pods that no controller recreates.
    """
    leaving = {uid(pod) for pod in going(found, options)}
    daemons = found.daemons if options.ignore_daemonsets else []
    return warning(Sorted(daemons=daemons, bare=[pod for pod in found.bare if uid(pod) in leaving]))


def drain_of(options: Mapping[str, object]) -> Object:
    """Build the spec field `drain` from the given flags, or {} if no flag is given; None marks an unset flag."""
    given = {name: value for name, value in options.items() if value is not None}
    return {"drain": given} if given else {}
