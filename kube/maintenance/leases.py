"""The lease that makes one NodeMaintenance the holder of a node, over all groups (NMO-22, NMO-27)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from kube.maintenance.objects import Maintenance
from kube.paths import Object, segment

Lease = Mapping[str, Any]
HOLDER = "node-maintenance"
HELD_FOR = "nodemaintenance.dev/held-for"
"""Annotation: `apiVersion name uid` of the NodeMaintenance that holds the node."""
DURATION = timedelta(seconds=3600)
RENEW_AFTER = DURATION / 2
NAMESPACE = "node-maintenance"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


def lease_path(node: str) -> str:
    """Path of the node's lease."""
    return f"{LEASES}/{segment(node)}"


def held_for(lease: Lease) -> tuple[str, str, str] | None:
    """(apiVersion, name, uid) of the holding NodeMaintenance; None when another tool made the lease."""
    said = (lease["metadata"].get("annotations") or {}).get(HELD_FOR, "").split(" ")
    if lease["spec"].get("holderIdentity") != HOLDER or len(said) != 3:
        return None
    return said[0], said[1], said[2]


def is_held_for(lease: Lease, maintenance: Maintenance) -> bool:
    """Whether the lease is held for this very object."""
    held = held_for(lease)
    return held is not None and held[2] == maintenance["metadata"]["uid"]


def is_expired(lease: Lease, now: datetime) -> bool:
    """Nobody renewed it in time."""
    return now > _renewed(lease) + timedelta(seconds=lease["spec"].get("leaseDurationSeconds") or 0)


def is_due(lease: Lease, now: datetime) -> bool:
    """Half of its time is over: time to renew."""
    return now > _renewed(lease) + RENEW_AFTER


def _renewed(lease: Lease) -> datetime:
    said = lease["spec"].get("renewTime")
    if not said:
        return datetime.fromtimestamp(0, timezone.utc)
    return datetime.strptime(said, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)


def lease_of(node: str, maintenance: Maintenance, now: datetime) -> Object:
    """The lease of `node`, held for `maintenance` from `now`."""
    metadata = maintenance["metadata"]
    moment = now.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": node,
            "namespace": NAMESPACE,
            "annotations": {HELD_FOR: f"{maintenance['apiVersion']} {metadata['name']} {metadata['uid']}"},
        },
        "spec": {
            "holderIdentity": HOLDER,
            "leaseDurationSeconds": int(DURATION.total_seconds()),
            "acquireTime": moment,
            "renewTime": moment,
        },
    }


def takeover_patch(lease: Lease, wanted: Object) -> Object:
    """Merge patch that turns `lease` into `wanted`, if nobody wrote it meanwhile."""
    version = lease["metadata"]["resourceVersion"]
    annotations = wanted["metadata"]["annotations"]
    return {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": wanted["spec"]}
