"""What a status is made of beside its own object: whether the node is closed, and which of its pods are left. Pure.

It is read from the cluster, or was seen by the step that speaks of it. A step's look stands for another one as long as
the maintenance is as that step read it: whoever writes a status of a newer state makes the older look worthless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kube.maintenance import drain_flags
from kube.maintenance.objects import Maintenance, group
from kube.nodes import Node, is_closed
from kube.paths import Object
from kube.pods import Pod
from kube.words import fitting

LEFT = ("namespace", "name", "deletionTimestamp", "finalizers")
"""Of a pod's metadata, what a status says of it."""
LEFT_BYTES = 400_000
"""Of all these in an event: 600 pods with the longest of names. Finalizers have no bound."""


@dataclass(frozen=True)
class Shown:
    """The node and its pods.

    Attributes:
        is_closed: the node is cordoned and tainted.
        pods: all pods of the node; not looked at where it is known who is `left`.
        left: those that are still to leave; None where the status tells them apart.
    """

    is_closed: bool
    pods: Sequence[Pod] = ()
    left: Sequence[Pod] | None = None

    @classmethod
    def of(cls, maintenance: Maintenance, node: Node | None, pods: Sequence[Pod]) -> Shown:
        """What was read."""
        return cls(node is not None and is_closed(node, group(maintenance).drain_taint), pods)

    def pending(self, maintenance: Maintenance, blocked: Iterable[Mapping[str, Any]], now: datetime) -> list[Pod]:
        """The pods that are still to leave, `blocked` among them."""
        if self.left is not None:
            return list(self.left)
        orphans = drain_flags.known_orphans(self.pods, blocked)
        return drain_flags.sorted_for(self.pods, drain_flags.options_of(maintenance), now, orphans).leaving


@dataclass(frozen=True)
class Looked:
    """What a step has seen, as it travels in event data.

    Attributes:
        version: the state of the NodeMaintenance that it read.
        is_closed: the node was cordoned and tainted then.
        left: the pods that were still to leave; none where whoever hears of it is to look again, as where they are too
            much for an event.
    """

    version: str
    is_closed: bool
    left: Sequence[Pod] = ()

    @classmethod
    def at(cls, maintenance: Maintenance, *, is_closed: bool, left: Sequence[Pod] = ()) -> Looked:
        """What was seen with a NodeMaintenance as this one."""
        return cls(str(maintenance["metadata"]["resourceVersion"]), is_closed, left)

    def as_data(self) -> Object:
        """The form that travels."""
        left = [{name: pod["metadata"][name] for name in LEFT if pod["metadata"].get(name)} for pod in self.left]
        told = {"left": left} if left and fitting(left, LEFT_BYTES, escaped=True) == left else {}
        return {"maintenanceVersion": self.version, "closed": self.is_closed, **told}
