"""Say before what a drain does to the pods of a node, by the rules by which `evict` does it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

from kube.budgets import Blocked, plan
from kube.door.api import Api
from kube.door.api_errors import ApiError
from kube.door.eviction_batch import budgets_over, orphans
from kube.maintenance import drain_flags
from kube.maintenance.lookup import pods_on_node
from kube.paths import Object
from kube.pods import DrainOptions, Pod, is_mirror, is_terminating, key, name_of, uid
from kube.virtualization.outlook import launcher_of

STATIC, DAEMON = "static", "of a DaemonSet"
"""Why a pod stays, whatever the flags."""


class Pods(NamedTuple):
    """What becomes of the pods of a node, each kind by namespace and name.

    Attributes:
        going: those that go, where no budget over them is used up before their turn.
        blocked: those that a budget keeps for now, or a flag for good.
        ending: those that are on their way already, which is waited for.
        staying: those that the drain leaves alone, each with the reason.
        deleted: whether they go by deletion, which asks no budget.
        selects_none: whether a selector is all that leaves the node's pods alone.
        machines: virtual machines, by namespace and name, whose launcher pods stay.
        unknown: what could not be read, a sentence each.
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
        """A line for each pod."""
        for pod in self.going:
            yield f"would {'delete' if self.deleted else 'evict'} pod {key(pod)}"
        for item in self.blocked:
            yield f"would wait with pod {item.key}: {item.message}"
        for pod in self.ending:
            yield f"would wait for pod {key(pod)}, which is ending"
        for pod, why in self.staying:
            yield f"would leave pod {key(pod)}: {why}"

    def as_data(self) -> dict[str, Any]:
        """The same for programs, in the words of `drain -o json` and of the status."""
        return {
            "evicted": [name_of(pod) for pod in self.going],
            "blockedPods": [item.as_data() for item in self.blocked],
            "ending": [name_of(pod) for pod in self.ending],
            "ignored": [{**name_of(pod), "reason": why} for pod, why in self.staying],
            **({"podsUnknown": "; ".join(self.unknown)} if self.unknown else {}),
        }


async def pods_foreseen(api: Api, node: str, options: DrainOptions, machines: Iterable[Object]) -> Pods:
    """Those of a node, drained with these options; but launchers of `machines` that leave, which are told of apart.

    What cannot be read keeps nobody from all else.
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
    """What becomes of pods that are to leave: they go, are on their way, or wait for a budget."""
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
    """What is not known of DaemonSets, and the uids of pods whose DaemonSet is gone."""
    try:
        return (), await orphans(api, pods)
    except ApiError as error:
        return (f"DaemonSets could not be read, so none is thought to be gone: {error.message}",), ()


def _launchers(pods: Iterable[Pod], machines: Iterable[Object]) -> dict[str, tuple[str, str]]:
    """The launcher pods of these virtual machines by uid, each with its machine."""
    told = {(machine["namespace"], machine["name"]) for machine in machines}
    found = {uid(pod): launcher_of(pod) for pod in pods}
    return {mark: machine for mark, machine in found.items() if machine in told}


def _why(pod: Pod, options: DrainOptions, now: datetime) -> str:
    return STATIC if is_mirror(pod) else drain_flags.left_out(pod, options, now) or DAEMON
