"""Previews what a drain does to the pods of a node, by the same rules as the `evict` function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

from kube.budgets import Blocked, plan
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.eviction_batch import budgets_over, orphans
from kube.maintenance import drain_flags
from kube.maintenance.lookup import pods_on_node
from kube.paths import Object
from kube.pods import DrainOptions, Pod, is_mirror, is_terminating, key, name_of, uid
from kube.virtualization.drain_forecast import launcher_of

STATIC, DAEMON = "static", "of a DaemonSet"
"""Reasons for which a pod stays, regardless of the flags."""


class Pods(NamedTuple):
    """The preview of a drain: what happens to each pod of a node.

    Attributes:
        going: Pods that leave, unless earlier evictions use up their budget.
        blocked: Pods that a budget blocks for now, or that a flag excludes permanently.
        ending: Terminating pods, which the drain waits for.
        staying: Pods that the drain ignores, each with the reason.
        deleted: Whether the drain deletes pods, which bypasses disruption budgets.
        selects_none: Whether there is a pod selector and no pod would leave.
        machines: Virtual machines, by namespace and name, whose virt-launcher pods stay.
        unknown: One sentence for each failed read.
    """

    going: list[Pod]
    blocked: list[Blocked]
    ending: list[Pod]
    staying: list[tuple[Pod, str]]
    deleted: bool = False
    selects_none: bool = False
    machines: Collection[tuple[str, str]] = ()
    unknown: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield one line for each pod."""
        for pod in self.going:
            yield f"would {'delete' if self.deleted else 'evict'} pod {key(pod)}"
        for item in self.blocked:
            yield f"would wait with pod {item.key}: {item.message}"
        for pod in self.ending:
            yield f"would wait for pod {key(pod)}, which is ending"
        for pod, why in self.staying:
            yield f"would leave pod {key(pod)}: {why}"

    def as_data(self) -> dict[str, Any]:
        """Return the preview as JSON data, with the field names of `drain -o json` and of the status."""
        return {
            "evicted": [name_of(pod) for pod in self.going],
            "blockedPods": [item.as_data() for item in self.blocked],
            "ending": [name_of(pod) for pod in self.ending],
            "ignored": [{**name_of(pod), "reason": why} for pod, why in self.staying],
            **({"podsUnknown": "; ".join(self.unknown)} if self.unknown else {}),
        }


async def pods_foreseen(api: Api, node: str, options: DrainOptions, machines: Iterable[Object]) -> Pods:
    """Preview a drain of the node's pods with these options.

    The preview omits pods that leave and that are virt-launcher pods of `machines`, because the caller reports the
    virtual machines separately. A failed read is noted in `unknown` and does not prevent the rest.
    """
    try:
        pods = sorted((await pods_on_node(api, node)).items, key=key)
    except ApiError as error:
        return Pods([], [], [], [], unknown=(f"the pods of {node} could not be read: {error.message}",))
    unknown, orphaned = await _orphans(api, pods)
    now = datetime.now(timezone.utc)
    found = drain_flags.sorted_for(pods, options, now, orphaned)
    leaving = {uid(pod): pod for pod in drain_flags.going(found, options)}
    launchers = _launchers(pods, machines)
    foreseen = await fates(api, [pod for mark, pod in leaving.items() if mark not in launchers], options)
    about, refused = {uid(pod) for pod in found.leaving}, drain_flags.refused(found, options)
    return foreseen._replace(
        blocked=sorted([*foreseen.blocked, *refused], key=lambda item: (item.pod["namespace"], item.pod["name"])),
        staying=[(pod, _why(pod, options, now)) for pod in pods if uid(pod) not in about],
        selects_none=bool(options.pod_selector) and not found.leaving,
        machines={machine for mark, machine in launchers.items() if mark not in leaving},
        unknown=(*unknown, *foreseen.unknown),
    )


async def fates(api: Api, leaving: Iterable[Pod], options: DrainOptions) -> Pods:
    """Preview the eviction of these pods: each leaves, is already terminating, or waits for a budget."""
    unknown: tuple[str, ...] = ()
    ordered = sorted(leaving, key=key)
    waiting = [pod for pod in ordered if not is_terminating(pod)]
    try:
        budgets = [] if options.disable_eviction else (await budgets_over(api, waiting)).items
    except ApiError as error:
        budgets, unknown = [], (f"disruption budgets could not be read, so none is thought of: {error.message}",)
    blocked = plan(waiting, budgets, options).blocked
    kept = {item.pod["uid"] for item in blocked}
    going, ending = [pod for pod in waiting if uid(pod) not in kept], [pod for pod in ordered if is_terminating(pod)]
    return Pods(going, blocked, ending, [], options.disable_eviction, unknown=unknown)


async def _orphans(api: Api, pods: Iterable[Pod]) -> tuple[tuple[str, ...], Collection[str]]:
    """Return a warning if the DaemonSets could not be read, and the uids of pods whose DaemonSet no longer exists."""
    try:
        return (), await orphans(api, pods)
    except ApiError as error:
        return (f"DaemonSets could not be read, so none is thought to be gone: {error.message}",), ()


def _launchers(pods: Iterable[Pod], machines: Iterable[Object]) -> dict[str, tuple[str, str]]:
    """Map the uid of each virt-launcher pod of these virtual machines to its virtual machine."""
    told = {(machine["namespace"], machine["name"]) for machine in machines}
    found = {uid(pod): launcher_of(pod) for pod in pods}
    return {mark: machine for mark, machine in found.items() if machine in told}


def _why(pod: Pod, options: DrainOptions, now: datetime) -> str:
    return STATIC if is_mirror(pod) else drain_flags.left_out(pod, options, now) or DAEMON
