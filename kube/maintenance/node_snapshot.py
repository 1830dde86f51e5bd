"""Snapshots of a node and its remaining pods, from which the status of its NodeMaintenance is computed.

A snapshot is read from the cluster, or comes from the event of a step that has read it. A snapshot in an event is valid
while the maintenance still has the resourceVersion that the step read. Any later status write invalidates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kube.maintenance import drain_flags
from kube.maintenance.objects import Maintenance, get_group
from kube.nodes import Node, is_cordoned_and_tainted, is_unreachable
from kube.paths import Object
from kube.pods import Pod, build_pvc_volume, is_finished, is_terminating, list_pvc_names
from kube.text_limits import take_within_bytes

LEAVING_FIELDS = ("namespace", "name", "deletionTimestamp", "finalizers")
"""Metadata fields of a leaving pod that the maintenance's status needs."""
MAX_LEAVING_BYTES = 400_000
"""Maximum size of all pod entries in one event, in bytes.

The limit suffices for 600 pods with the longest possible names. Finalizers may have any size.
"""


@dataclass(frozen=True)
class NodeSnapshot:
    """A node's state and pods.

    Attributes:
        is_cordoned_and_tainted: Whether the node is cordoned and tainted.
        is_unreachable: Whether the node's kubelet has stopped sending heartbeats; None if the node was not read.
        pods: All pods on the node; unused if `leaving` is set.
        leaving: The pods that must still leave the node; None if they must be computed from `pods`.
    """

    is_cordoned_and_tainted: bool
    pods: Sequence[Pod] = ()
    leaving: Sequence[Pod] | None = None
    is_unreachable: bool | None = None

    @classmethod
    def from_node(cls, maintenance: Maintenance, node: Node | None, pods: Sequence[Pod]) -> NodeSnapshot:
        """Build the snapshot from objects that were read from the API server."""
        if node is None:
            return cls(is_cordoned_and_tainted=False, pods=pods)
        has_cordon_and_taints = is_cordoned_and_tainted(node, get_group(maintenance).drain_taint)
        return cls(has_cordon_and_taints, pods, is_unreachable=is_unreachable(node))

    def list_pending(self, maintenance: Maintenance, blocked: Iterable[Mapping[str, Any]], now: datetime) -> list[Pod]:
        """Return the pods that must still leave the node, including the `blocked` pods."""
        if self.leaving is not None:
            return list(self.leaving)
        orphan_uids = drain_flags.find_reported_orphan_uids(self.pods, blocked)
        return drain_flags.classify_for_drain(
            self.pods, drain_flags.parse_drain_options(maintenance), now, orphan_uids
        ).leaving


@dataclass(frozen=True)
class StepSnapshot:
    """The state of a node and its pods as a step read it, for transfer in event data.

    Attributes:
        maintenance_version: resourceVersion of the NodeMaintenance that the step read.
        is_cordoned_and_tainted: Whether the node was cordoned and tainted.
        leaving: The pods that had to leave; empty if the receiver must read the pods itself, for example because there
            are too many for one event.
        is_unreachable: Whether the node's kubelet has stopped sending heartbeats.
    """

    maintenance_version: str
    is_cordoned_and_tainted: bool
    leaving: Sequence[Pod] = ()
    is_unreachable: bool = False

    @classmethod
    def from_maintenance(
        cls,
        maintenance: Maintenance,
        *,
        is_cordoned_and_tainted: bool,
        leaving: Sequence[Pod] = (),
        is_unreachable: bool = False,
    ) -> StepSnapshot:
        """Build the snapshot of a step that read this version of the NodeMaintenance."""
        version = str(maintenance["metadata"]["resourceVersion"])
        return cls(version, is_cordoned_and_tainted, leaving, is_unreachable)

    def as_data(self) -> Object:
        """Return the snapshot as event data."""
        leaving = [_build_leaving_entry(pod) for pod in self.leaving]
        leaving_field = (
            {"left": leaving}
            if leaving and take_within_bytes(leaving, MAX_LEAVING_BYTES, ascii_only=True) == leaving
            else {}
        )
        unreachable_field = {"unreachable": True} if self.is_unreachable else {}
        return {
            "maintenanceVersion": self.maintenance_version,
            "closed": self.is_cordoned_and_tainted,
            **unreachable_field,
            **leaving_field,
        }


def _build_leaving_entry(pod: Pod) -> Object:
    """Build a leaving pod's entry in event data: metadata, and for a terminating pod what may delay its removal."""
    entry = {name: pod["metadata"][name] for name in LEAVING_FIELDS if pod["metadata"].get(name)}
    if is_terminating(pod) and is_finished(pod):
        claims = list_pvc_names(pod)
        entry |= {"phase": pod["status"]["phase"], **({"claims": claims} if claims else {})}
    return entry


def parse_leaving_entry(entry: Mapping[str, Any]) -> Pod:
    """Return a pod with the fields of an entry that `StepSnapshot.as_data` created."""
    volumes = [build_pvc_volume(name) for name in entry.get("claims", [])]
    return {"metadata": entry, "spec": {"volumes": volumes}, "status": {"phase": entry.get("phase")}}
