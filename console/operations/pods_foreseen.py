"""Say before what a NodeMaintenance does to the pods of its node, by the rules by which `evict` does it."""

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
from kube.pods import DrainOptions, Pod, is_terminating, key, name_of, uid
from kube.virtualization.outlook import launcher_of


class Pods(NamedTuple):
    """What becomes of the pods of a node, each kind by namespace and name; or why it is not known.

    Attributes:
        evicted: those that go, where no budget over them is used up before their turn.
        blocked: those that a budget keeps for now, or a flag for good.
        ignored: those of DaemonSets, which stay.
    """

    evicted: list[Pod]
    blocked: list[Blocked]
    ignored: list[Pod]
    unknown: str = ""

    def lines(self) -> Iterator[str]:
        """A line for each pod that goes, or is to go."""
        for pod in self.evicted:
            yield f"would evict pod {key(pod)}"
        for item in self.blocked:
            yield f"would wait with pod {item.pod['namespace']}/{item.pod['name']}: {item.message}"

    def as_data(self) -> dict[str, Any]:
        """The same for programs, in the words of `drain -o json` and of the status."""
        if self.unknown:
            return {"podsUnknown": self.unknown}
        return {
            "evicted": [name_of(pod) for pod in self.evicted],
            "blockedPods": [item.as_data() for item in self.blocked],
            "ignored": [name_of(pod) for pod in self.ignored],
        }


async def pods_foreseen(api: Api, maintenance: Maintenance, machines: Iterable[Object]) -> Pods:
    """Those of the node that it names; the launchers of `machines`, which are told of apart, are left out.

    What cannot be read keeps nobody from all else.
    """
    told = {(machine["namespace"], machine["name"]) for machine in machines}
    try:
        return await _foreseen(api, node_name(maintenance), drain_flags.options_of(maintenance), told)
    except ApiError as error:
        return Pods([], [], [], f"the pods of {node_name(maintenance)} could not be read: {error.message}")


async def _foreseen(api: Api, node: str, options: DrainOptions, machines: Collection[tuple[str, str]]) -> Pods:
    pods = [pod for pod in (await pods_on_node(api, node)).items if launcher_of(pod) not in machines]
    found = drain_flags.sorted_for(pods, options, datetime.now(timezone.utc), await orphans(api, pods))
    going = [pod for pod in drain_flags.going(found, options) if not is_terminating(pod)]
    planned = plan(going, (await budgets_over(api, going)).items, options)
    kept = [*planned.blocked, *drain_flags.refused(found, options)]
    kept_uids = {item.pod["uid"] for item in kept}
    return Pods(
        sorted((pod for pod in going if uid(pod) not in kept_uids), key=key),
        sorted(kept, key=lambda item: (item.pod["namespace"], item.pod["name"])),
        sorted(found.daemons if options.ignore_daemonsets else (), key=key),
    )
