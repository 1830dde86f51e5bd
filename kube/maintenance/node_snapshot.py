"""Snapshots of a node and its remaining pods, from which the status of its NodeMaintenance is computed.

A snapshot is read from the cluster, or comes from the event of a step that has read it. A snapshot from an event is
valid while the maintenance has the resourceVersion that the step read. Any later status write invalidates the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kube.maintenance import drain_flags
from kube.maintenance.objects import Maintenance, get_group
from kube.nodes import Node, is_cordoned_and_tainted
from kube.paths import Object
from kube.pods import Pod
from kube.text_limits import take_within_bytes

LEAVING_FIELDS = ("namespace", "name", "deletionTimestamp", "finalizers")
"""Metadata fields of a pod that the status of the maintenance needs."""
MAX_LEAVING_BYTES = 400_000
"""Size limit of the `LEAVING_FIELDS` of all pods in one event, in bytes.

The limit is enough for 600 pods with the longest possible names. The size of finalizers is unbounded.
"""


@dataclass(frozen=True)
class NodeSnapshot:
    """Snapshot of the node and its pods.

    Attributes:
        is_cordoned_and_tainted: whether the node is cordoned and tainted.
        pods: all pods on the node; unused if `leaving` is set.
        leaving: the pods that still have to leave the node; None if they must be computed from `pods`.
    """

    is_cordoned_and_tainted: bool
    pods: Sequence[Pod] = ()
    leaving: Sequence[Pod] | None = None

    @classmethod
    def from_node(cls, maintenance: Maintenance, node: Node | None, pods: Sequence[Pod]) -> NodeSnapshot:
        """Build the snapshot from objects that were read from the cluster."""
        return cls(node is not None and is_cordoned_and_tainted(node, get_group(maintenance).drain_taint), pods)

    def list_pending(self, maintenance: Maintenance, blocked: Iterable[Mapping[str, Any]], now: datetime) -> list[Pod]:
        """Return the pods that still have to leave the node, including the `blocked` pods."""
        if self.leaving is not None:
            return list(self.leaving)
        orphan_uids = drain_flags.find_reported_orphans(self.pods, blocked)
        return drain_flags.classify_for_drain(
            self.pods, drain_flags.parse_drain_options(maintenance), now, orphan_uids
        ).leaving


@dataclass(frozen=True)
class StepSnapshot:
    """Snapshot that a step read, as transferred in event data.

    Attributes:
        maintenance_version: resourceVersion of the NodeMaintenance that the step read.
        is_cordoned_and_tainted: whether the node was cordoned and tainted.
        leaving: the pods that still had to leave; empty if the receiver must read the pods itself, for example because
            there are too many for one event.
    """

    maintenance_version: str
    is_cordoned_and_tainted: bool
    leaving: Sequence[Pod] = ()

    @classmethod
    def from_maintenance(
        cls, maintenance: Maintenance, *, is_cordoned_and_tainted: bool, leaving: Sequence[Pod] = ()
    ) -> StepSnapshot:
        """Build the snapshot of a step that read this version of the NodeMaintenance."""
        return cls(str(maintenance["metadata"]["resourceVersion"]), is_cordoned_and_tainted, leaving)

    def as_data(self) -> Object:
        """Return the snapshot as event data."""
        leaving = [
            {name: pod["metadata"][name] for name in LEAVING_FIELDS if pod["metadata"].get(name)}
            for pod in self.leaving
        ]
        leaving_field = (
            {"left": leaving}
            if leaving and take_within_bytes(leaving, MAX_LEAVING_BYTES, ascii_only=True) == leaving
            else {}
        )
        return {"maintenanceVersion": self.maintenance_version, "closed": self.is_cordoned_and_tainted, **leaving_field}
