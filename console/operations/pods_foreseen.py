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
from kube.maintenance.objects import Maintenance, node_name
from kube.paths import Object
from kube.pods import DrainOptions, Pod, is_daemon, is_mirror, is_terminating, key, name_of, uid
from kube.virtualization.outlook import launcher_of

STATIC, DAEMON, UNSELECTED = "static", "of a DaemonSet", "not selected"
"""Why a pod stays."""


class Pods(NamedTuple):
    """What becomes of the pods of a node, each kind by namespace and name; or why it is not known.

    Attributes:
        going: those that go, where no budget over them is used up before their turn.
        blocked: those that a budget keeps for now, or a flag for good.
        ending: those that are on their way already, which is waited for.
        staying: those that the drain leaves alone, each with the reason.
        deleted: whether they go by deletion, which asks no budget.
        unknown: why nothing is known, "" where it is.
    """

    going: list[Pod]
    blocked: list[Blocked]
    ending: list[Pod]
    staying: list[tuple[Pod, str]]
    deleted: bool = False
    unknown: str = ""

    def lines(self) -> Iterator[str]:
        """A line for each pod."""
        for pod in self.going:
            yield f"would {'delete' if self.deleted else 'evict'} pod {key(pod)}"
        for item in self.blocked:
            yield f"would wait with pod {item.pod['namespace']}/{item.pod['name']}: {item.message}"
        for pod in self.ending:
            yield f"would wait for pod {key(pod)}, which is ending"
        for pod, why in self.staying:
            yield f"would leave pod {key(pod)}: {why}"

    def as_data(self) -> dict[str, Any]:
        """The same for programs, in the words of `drain -o json` and of the status."""
        if self.unknown:
            return {"podsUnknown": self.unknown}
        return {
            "evicted": [name_of(pod) for pod in self.going],
            "blockedPods": [item.as_data() for item in self.blocked],
            "ending": [name_of(pod) for pod in self.ending],
            "ignored": [{**name_of(pod), "reason": why} for pod, why in self.staying],
        }


async def pods_foreseen(api: Api, maintenance: Maintenance, machines: Iterable[Object]) -> Pods:
    """Those of the node that it names; the launchers of `machines`, which are told of apart, are left out.

    What cannot be read keeps nobody from all else.
    """
    told = {(machine["namespace"], machine["name"]) for machine in machines}
    try:
        return await _foreseen(api, node_name(maintenance), drain_flags.options_of(maintenance), told)
    except ApiError as error:
        unknown = f"the pods of {node_name(maintenance)} could not be read: {error.message}"
        return Pods([], [], [], [], unknown=unknown)


async def parted(api: Api, pods: Iterable[Pod], options: DrainOptions) -> tuple[list[Pod], list[Pod], list[Blocked]]:
    """Those among pods that are to leave that go, are on their way, and wait for a budget."""
    leaving = sorted(pods, key=key)
    ending, waiting = ([pod for pod in leaving if is_terminating(pod) is state] for state in (True, False))
    blocked = plan(waiting, (await budgets_over(api, waiting)).items, options).blocked
    kept = {item.pod["uid"] for item in blocked}
    return [pod for pod in waiting if uid(pod) not in kept], ending, blocked


async def _foreseen(api: Api, node: str, options: DrainOptions, machines: Collection[tuple[str, str]]) -> Pods:
    pods = [pod for pod in (await pods_on_node(api, node)).items if launcher_of(pod) not in machines]
    found = drain_flags.sorted_for(pods, options, datetime.now(timezone.utc), await orphans(api, pods))
    going, ending, blocked = await parted(api, drain_flags.going(found, options), options)
    blocked += drain_flags.refused(found, options)
    about = {uid(pod) for pod in found.leaving}
    staying: list[tuple[Pod, str]] = [(pod, _why(pod)) for pod in sorted(pods, key=key) if uid(pod) not in about]
    in_order = sorted(blocked, key=lambda item: (item.pod["namespace"], item.pod["name"]))
    return Pods(going, in_order, ending, staying, options.disable_eviction)


def _why(pod: Pod) -> str:
    if is_mirror(pod):
        return STATIC
    return DAEMON if is_daemon(pod) else UNSELECTED
