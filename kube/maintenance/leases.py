"""The Lease of a node: only the NodeMaintenance that holds it may change the node (NMO-22, NMO-27, NMO-27a).

All medik8s remediators use the same Lease, identified by namespace and name. Its holder owns the node.
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
"""Annotation: `apiVersion name uid` of the NodeMaintenance that holds the lease."""
HELD_FOR = re.compile(" ".join(3 * ["([!-~]{1,253})"]))
"""Format of `HOLDER_ANNOTATION`.

Any client that may write leases can set the annotation, and its parts become CloudEvent attributes, which allow only
some characters.
"""
DURATION = timedelta(seconds=3600)
RENEW_AFTER, SPREAD = DURATION / 2, DURATION / 4
"""A lease is renewed between `RENEW_AFTER` and `RENEW_AFTER + SPREAD` after the last renewal.

The holder's uid determines the time, so that leases acquired together are not renewed together. No lease comes near its
expiry.
"""
NAMESPACE, LEASES = LEASE_NAMESPACE, paths.LEASES


def lease_path(node: str) -> str:
    """Return the API path of the node's lease."""
    return f"{LEASES}/{segment(lease_name(node))}"


def lease_name(node: str) -> str:
    """Return the name of the node's lease."""
    return f"node-{node}"


def node_of(lease: Lease) -> str:
    """Return the name of the node that the lease belongs to, "" for other leases in the shared namespace."""
    kind, _, name = str(lease["metadata"]["name"]).partition("-")
    return name if kind == "node" else ""


class Holder(NamedTuple):
    """Identity of the NodeMaintenance that holds a lease."""

    api_version: str
    name: str
    uid: str


def holder_of(lease: Lease) -> Holder | None:
    """Return the NodeMaintenance that holds the lease.

    Returns None if another tool holds it, or the node-maintenance-operator that this product replaces.
    """
    named = HELD_FOR.fullmatch((lease["metadata"].get("annotations") or {}).get(HOLDER_ANNOTATION, ""))
    is_ours = lease["spec"].get("holderIdentity") == HOLDER_IDENTITY
    return Holder(*named.groups()) if named and is_ours else None


def is_holder(lease: Lease, maintenance: Maintenance) -> bool:
    """Return whether this maintenance, identified by its uid, holds the lease."""
    holder = holder_of(lease)
    return holder is not None and holder.uid == maintenance["metadata"]["uid"]


def is_free(lease: Lease, now: datetime) -> bool:
    """Return whether a lease that no NodeMaintenance holds may be acquired, because it was released or has expired.

    A lease of the replaced node-maintenance-operator may also be acquired. It has the same holder identity as ours, and
    this product takes over the operator's maintenances.
    """
    identity = lease["spec"].get("holderIdentity")
    left_by_the_operator = identity == HOLDER_IDENTITY and holder_of(lease) is None
    return not identity or left_by_the_operator or is_expired(lease, now)


def is_expired(lease: Lease, now: datetime) -> bool:
    """Return whether the lease was not renewed in time."""
    return now - _renewed(lease) > timedelta(seconds=lease["spec"].get("leaseDurationSeconds") or 0)


def is_due(lease: Lease, now: datetime) -> bool:
    """Return whether the lease must be renewed now.

    This is the case after `RENEW_AFTER` plus the part of `SPREAD` that follows from the holder's uid.
    """
    holder = holder_of(lease)
    part = zlib.crc32(holder.uid.encode()) / 2**32 if holder else 0.0
    return now - _renewed(lease) > RENEW_AFTER + part * SPREAD


def _renewed(lease: Lease) -> datetime:
    renewed = lease["spec"].get("renewTime")
    if not renewed:
        return datetime.fromtimestamp(0, timezone.utc)
    return datetime.strptime(renewed, MICROSECONDS).replace(tzinfo=timezone.utc)


def lease_of(node: str, maintenance: Maintenance, now: datetime) -> Object:
    """Build the lease of `node`, held by `maintenance` from `now` on."""
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
    """Build the spec fields that name the holder and the lease duration, acquired at `now`."""
    moment = microtime(now)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(duration.total_seconds()),
        "acquireTime": moment,
        "renewTime": moment,
    }


def takeover_patch(lease: Lease, wanted: Object) -> Object:
    """Build the merge patch that turns `lease` into `wanted`; it fails if another client has changed the lease."""
    version = lease["metadata"]["resourceVersion"]
    annotations, before = wanted["metadata"]["annotations"], lease["spec"]
    transitions = before.get("leaseTransitions") or 0
    if holder_of(lease) == holder_of(wanted):
        kept = {"acquireTime": before.get("acquireTime"), "leaseTransitions": transitions}
    else:
        kept = {"leaseTransitions": transitions + 1}
    return {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": {**wanted["spec"], **kept}}
