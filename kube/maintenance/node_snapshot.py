"""Node state and remaining pods, the cluster state that a NodeMaintenance's status is computed from.

The state is read from the cluster, or it was read by the step that emitted the event. A step's snapshot can replace a
new read as long as the maintenance has the version that the step read. Any later status write invalidates the snapshot.
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
from kube.text_limits import fitting

LEFT = ("namespace", "name", "deletionTimestamp", "finalizers")
"""Pod metadata fields that the status needs."""
LEFT_BYTES = 400_000
"""Size limit of these fields in one event: enough for 600 pods with the longest possible names.

The size of finalizers is unbounded.
"""


@dataclass(frozen=True)
class Shown:
    """Snapshot of the node and its pods.

    Attributes:
        is_closed: whether the node is cordoned and tainted.
        pods: all pods of the node; unused if `left` is set.
        left: the pods that still have to leave; None if they must be computed from `pods`.
    """

    is_closed: bool
    pods: Sequence[Pod] = ()
    left: Sequence[Pod] | None = None

    @classmethod
    def of(cls, maintenance: Maintenance, node: Node | None, pods: Sequence[Pod]) -> Shown:
        """Build the snapshot from objects that were read from the cluster."""
        return cls(node is not None and is_closed(node, group(maintenance).drain_taint), pods)

    def pending(self, maintenance: Maintenance, blocked: Iterable[Mapping[str, Any]], now: datetime) -> list[Pod]:
        """Return the pods that still have to leave, including the `blocked` ones."""
        if self.left is not None:
            return list(self.left)
        orphans = drain_flags.known_orphans(self.pods, blocked)
        return drain_flags.sorted_for(self.pods, drain_flags.options_of(maintenance), now, orphans).leaving


@dataclass(frozen=True)
class Looked:
    """Snapshot that a step read, as transferred in event data.

    Attributes:
        version: resourceVersion of the NodeMaintenance that the step read.
        is_closed: whether the node was cordoned and tainted.
        left: the pods that still had to leave. It is empty if the receiver must read them itself, for example because
            there are too many for one event.
    """

    version: str
    is_closed: bool
    left: Sequence[Pod] = ()

    @classmethod
    def at(cls, maintenance: Maintenance, *, is_closed: bool, left: Sequence[Pod] = ()) -> Looked:
        """Build the snapshot of a step that read this version of the NodeMaintenance."""
        return cls(str(maintenance["metadata"]["resourceVersion"]), is_closed, left)

    def as_data(self) -> Object:
        """Return the snapshot as event data."""
        left = [{name: pod["metadata"][name] for name in LEFT if pod["metadata"].get(name)} for pod in self.left]
        told = {"left": left} if left and fitting(left, LEFT_BYTES, escaped=True) == left else {}
        return {"maintenanceVersion": self.version, "closed": self.is_closed, **told}
