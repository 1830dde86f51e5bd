"""How a NodeMaintenance drains by `spec.drain`: which pods it is about, and which its flags refuse (DRN-1a). Pure.

Unset it is the drain of the documents: `kubectl drain --force --delete-emptydir-data --ignore-daemonsets`. kubectl
refuses a whole drain for one pod; here that pod is blocked, and the others go.
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
"""Reasons of blocked pods: the flag that refuses them."""
UNSELECTED, SKIPPED = "not selected", "ending for longer than is waited for"
"""Why a drain is not about a pod."""
REMEDIES = {
    IGNORE_DAEMONSETS: "its DaemonSet makes it again here at once: set spec.drain.ignoreDaemonSets, "
    "or keep the DaemonSet off the node",
    DELETE_EMPTYDIR_DATA: "its emptyDir data would be lost: set spec.drain.deleteEmptyDirData, or delete it",
    FORCE: "no controller makes it again: set spec.drain.force, or delete it",
}


def options_of(maintenance: Maintenance) -> DrainOptions:
    """`spec.drain`; what is not set, or not of its type where no schema held it, is as in the documents' drain."""
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
    """The pods of the node told apart, those that the drain is not about left out: not selected, or not waited for.

    A selector that cannot be read selects all pods, which are refused then.
    """
    return sort([pod for pod in pods if not left_out(pod, options, now)], options, orphans)


def left_out(pod: Pod, options: DrainOptions, now: datetime) -> str:
    """Why the drain is not about a pod, "" where it is."""
    if not _selects(options, pod):
        return UNSELECTED
    return SKIPPED if _is_skipped(pod, options, now) else ""


def _selects(options: DrainOptions, pod: Pod) -> bool:
    selector, _ = _read(options.pod_selector)
    return matches(selector, pod["metadata"].get("labels") or {})


@lru_cache(maxsize=256)
def _read(query: str) -> tuple[Mapping[str, Any], str]:
    """The selector, that of all pods where it cannot be read, and what is wrong with it, "" for nothing.

    Once, and not for each pod: anybody's selector may be long.
    """
    try:
        return parsed(query), ""
    except ValueError as error:
        return {}, f"spec.drain.podSelector cannot be read: {error}; correct it, or leave it out"


def _is_skipped(pod: Pod, options: DrainOptions, now: datetime) -> bool:
    """Whether it was to be gone longer ago than the drain waits, by kubectl's reckoning in whole seconds."""
    if not options.skip_wait_seconds or not is_terminating(pod):
        return False
    late = now - moment(pod["metadata"]["deletionTimestamp"])
    return int(late.total_seconds()) > options.skip_wait_seconds


def refused(found: Sorted, options: DrainOptions) -> list[Blocked]:
    """Those among `leaving` that a flag refuses, the first in kubectl's order; one that is on its way none refuses."""
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
    """Those among `leaving` that no flag refuses."""
    out = {item.pod["uid"] for item in refused(found, options)}
    return [pod for pod in found.leaving if uid(pod) not in out]


def known_orphans(pods: Iterable[Pod], blocked: Iterable[Mapping[str, Any]]) -> set[str]:
    """Uids of the DaemonSet pods without a DaemonSet, as far as blocked pods tell: these alone `Force` can refuse."""
    named = {f"{item['namespace']}/{item['name']}" for item in blocked if item["reason"] == FORCE}
    return {uid(pod) for pod in pods if is_daemon(pod) and key(pod) in named}


def are_told(refusals: Iterable[Blocked], maintenance: Maintenance) -> bool:
    """Whether the status names all of them with their reasons: then nobody need look at them again."""
    told = {(item["namespace"], item["name"], item["reason"]) for item in blocked_pods(maintenance)}
    return all((item.pod["namespace"], item.pod["name"], item.reason) in told for item in refusals)


def warned(found: Sorted, options: DrainOptions) -> str:
    """What is said before the first eviction (NMO-8a): of the pods that stay in peace, and those that go for good."""
    leaving = {uid(pod) for pod in going(found, options)}
    daemons = found.daemons if options.ignore_daemonsets else []
    return warning(Sorted(daemons=daemons, bare=[pod for pod in found.bare if uid(pod) in leaving]))


def drain_of(options: Mapping[str, object]) -> Object:
    """`spec.drain` of the flags that are given, {} for none: what is None is not set."""
    given = {name: value for name, value in options.items() if value is not None}
    return {"drain": given} if given else {}
