"""The Lease of a node: the one NodeMaintenance that may change the node is its holder (NMO-22, NMO-27, NMO-27a).

It is the lease that all remediators of medik8s look at, by its namespace and its name: who holds it has the node.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from kube import paths
from kube.maintenance.objects import Maintenance
from kube.paths import LEASE_NAMESPACE, Object, segment
from kube.times import MICROSECONDS, microtime

Lease = Mapping[str, Any]
HOLDER_IDENTITY = "node-maintenance"
HOLDER_ANNOTATION = "nodemaintenance.dev/held-for"
"""Annotation: `apiVersion name uid` of the NodeMaintenance that is the holder."""
HELD_FOR = re.compile(" ".join(3 * ["([!-~]{1,253})"]))
"""Whoever may write leases may write anything there; of it events are made, whose attributes are not anything."""
DURATION = timedelta(seconds=3600)
RENEW_AFTER, SPREAD = DURATION / 2, DURATION / 4
"""A lease is renewed at a moment of its own within `SPREAD` after `RENEW_AFTER`: those of many nodes that were acquired
together are renewed one by one, and none is near its end."""
NAMESPACE, LEASES = LEASE_NAMESPACE, paths.LEASES


def lease_path(node: str) -> str:
    """Path of the node's lease."""
    return f"{LEASES}/{segment(lease_name(node))}"


def lease_name(node: str) -> str:
    """Name of the node's lease."""
    return f"node-{node}"


def node_of(lease: Lease) -> str:
    """The node that a lease is of, "" for another kind of lease: the namespace is shared."""
    kind, _, name = str(lease["metadata"]["name"]).partition("-")
    return name if kind == "node" else ""


class Holder(NamedTuple):
    """Names the NodeMaintenance that a lease is held for."""

    api_version: str
    name: str
    uid: str


def holder_of(lease: Lease) -> Holder | None:
    """The NodeMaintenance that is the holder; None when another tool is, or the operator that came before us."""
    named = HELD_FOR.fullmatch((lease["metadata"].get("annotations") or {}).get(HOLDER_ANNOTATION, ""))
    is_ours = lease["spec"].get("holderIdentity") == HOLDER_IDENTITY
    return Holder(*named.groups()) if named and is_ours else None


def is_holder(lease: Lease, maintenance: Maintenance) -> bool:
    """Whether this very object is the holder."""
    holder = holder_of(lease)
    return holder is not None and holder.uid == maintenance["metadata"]["uid"]


def is_free(lease: Lease, now: datetime) -> bool:
    """Whether one that no NodeMaintenance holds may be acquired: it was released, or nobody renewed it in time.

    So may one of the operator that came before us: the holder's name is ours, and what it maintained is ours now.
    """
    identity = lease["spec"].get("holderIdentity")
    left_by_the_operator = identity == HOLDER_IDENTITY and holder_of(lease) is None
    return not identity or left_by_the_operator or is_expired(lease, now)


def is_expired(lease: Lease, now: datetime) -> bool:
    """Nobody renewed it in time."""
    return now - _renewed(lease) > timedelta(seconds=lease["spec"].get("leaseDurationSeconds") or 0)


def is_due(lease: Lease, now: datetime) -> bool:
    """Half of its time is over, and the part of `SPREAD` that its holder's uid gives: time to renew."""
    holder = holder_of(lease)
    part = zlib.crc32(holder.uid.encode()) / 2**32 if holder else 0.0
    return now - _renewed(lease) > RENEW_AFTER + part * SPREAD


def _renewed(lease: Lease) -> datetime:
    renewed = lease["spec"].get("renewTime")
    if not renewed:
        return datetime.fromtimestamp(0, timezone.utc)
    return datetime.strptime(renewed, MICROSECONDS).replace(tzinfo=timezone.utc)


def lease_of(node: str, maintenance: Maintenance, now: datetime) -> Object:
    """The lease of `node` with `maintenance` as its holder from `now`."""
    metadata = maintenance["metadata"]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": lease_name(node),
            "namespace": NAMESPACE,
            "annotations": {HOLDER_ANNOTATION: f"{maintenance['apiVersion']} {metadata['name']} {metadata['uid']}"},
        },
        "spec": {**acquired(HOLDER_IDENTITY, DURATION, now), "leaseTransitions": 0},
    }


def acquired(identity: str, duration: timedelta, now: datetime) -> Object:
    """The part of a lease's spec that says who holds it, for how long, from `now`."""
    moment = microtime(now)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(duration.total_seconds()),
        "acquireTime": moment,
        "renewTime": moment,
    }


def takeover_patch(lease: Lease, wanted: Object) -> Object:
    """Merge patch that turns `lease` into `wanted`, if nobody wrote it meanwhile."""
    version = lease["metadata"]["resourceVersion"]
    annotations, before = wanted["metadata"]["annotations"], lease["spec"]
    transitions = before.get("leaseTransitions") or 0
    if holder_of(lease) == holder_of(wanted):
        kept = {"acquireTime": before.get("acquireTime"), "leaseTransitions": transitions}
    else:
        kept = {"leaseTransitions": transitions + 1}
    return {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": {**wanted["spec"], **kept}}
