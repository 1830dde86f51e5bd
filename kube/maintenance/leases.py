"""The node's Lease: only the NodeMaintenance that holds it may change the node (NMO-22, NMO-27, NMO-27a).

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
from kube.paths import LEASE_NAMESPACE, Object, encode_path_segment
from kube.times import MICRO_TIME_FORMAT, format_micro_time

Lease = Mapping[str, Any]
HOLDER_IDENTITY = "node-maintenance"
HOLDER_ANNOTATION = "nodemaintenance.dev/held-for"
"""Annotation: `apiVersion name uid` of the NodeMaintenance that holds the lease."""
HOLDER_PATTERN = re.compile(" ".join(3 * ["([!-~]{1,253})"]))
"""Format of `HOLDER_ANNOTATION`.

Any client that may write leases can set the annotation. Its parts become CloudEvent attributes, whose values may
contain only certain characters.
"""
LEASE_DURATION = timedelta(seconds=3600)
RENEW_AFTER, RENEWAL_JITTER = LEASE_DURATION / 2, LEASE_DURATION / 4
"""A lease is renewed between `RENEW_AFTER` and `RENEW_AFTER + RENEWAL_JITTER` after the last renewal.

The holder's uid determines the time, so that leases acquired together are not renewed together. Every lease is renewed
long before it expires.
"""
NAMESPACE, LEASES_PATH = LEASE_NAMESPACE, paths.LEASES_PATH


def build_lease_path(node_name: str) -> str:
    """Return the API path of the node's lease."""
    return f"{LEASES_PATH}/{encode_path_segment(build_lease_name(node_name))}"


def build_lease_name(node_name: str) -> str:
    """Return the name of the node's lease."""
    return f"node-{node_name}"


def parse_node_name(lease: Lease) -> str:
    """Return the name of the node that the lease belongs to, or "" for other leases in the shared namespace."""
    kind, _, name = str(lease["metadata"]["name"]).partition("-")
    return name if kind == "node" else ""


class LeaseHolder(NamedTuple):
    """Identity of the NodeMaintenance that holds a lease."""

    api_version: str
    name: str
    uid: str


def parse_holder(lease: Lease) -> LeaseHolder | None:
    """Return the NodeMaintenance that holds the lease.

    Returns None if another tool holds it, or the node-maintenance-operator that this product replaces.
    """
    match = HOLDER_PATTERN.fullmatch((lease["metadata"].get("annotations") or {}).get(HOLDER_ANNOTATION, ""))
    is_ours = lease["spec"].get("holderIdentity") == HOLDER_IDENTITY
    return LeaseHolder(*match.groups()) if match and is_ours else None


def is_holder(lease: Lease, maintenance: Maintenance) -> bool:
    """Return whether this maintenance, identified by its uid, holds the lease."""
    holder = parse_holder(lease)
    return holder is not None and holder.uid == maintenance["metadata"]["uid"]


def is_available(lease: Lease, now: datetime) -> bool:
    """Return whether a lease that no NodeMaintenance holds may be acquired, because it was released or has expired.

    A lease held by the replaced node-maintenance-operator may also be acquired. Both products use the same holder
    identity, and this product takes over the operator's maintenances.
    """
    identity = lease["spec"].get("holderIdentity")
    is_legacy_lease = identity == HOLDER_IDENTITY and parse_holder(lease) is None
    return not identity or is_legacy_lease or is_expired(lease, now)


def is_expired(lease: Lease, now: datetime) -> bool:
    """Return whether the lease was not renewed in time."""
    return now - _parse_renew_time(lease) > timedelta(seconds=lease["spec"].get("leaseDurationSeconds") or 0)


def is_renewal_due(lease: Lease, now: datetime) -> bool:
    """Return whether the lease must be renewed now.

    A renewal is due after `RENEW_AFTER` plus a share of `RENEWAL_JITTER` that is derived from the holder's uid.
    """
    holder = parse_holder(lease)
    jitter_share = zlib.crc32(holder.uid.encode()) / 2**32 if holder else 0.0
    return now - _parse_renew_time(lease) > RENEW_AFTER + jitter_share * RENEWAL_JITTER


def _parse_renew_time(lease: Lease) -> datetime:
    renewed = lease["spec"].get("renewTime")
    if not renewed:
        return datetime.fromtimestamp(0, timezone.utc)
    return datetime.strptime(renewed, MICRO_TIME_FORMAT).replace(tzinfo=timezone.utc)


def build_lease(node_name: str, maintenance: Maintenance, now: datetime) -> Object:
    """Build the lease of `node_name`, held by `maintenance` from `now` on."""
    metadata = maintenance["metadata"]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": build_lease_name(node_name),
            "namespace": NAMESPACE,
            "annotations": {HOLDER_ANNOTATION: f"{maintenance['apiVersion']} {metadata['name']} {metadata['uid']}"},
        },
        "spec": {**build_holder_spec(HOLDER_IDENTITY, LEASE_DURATION, now), "leaseTransitions": 0},
    }


def build_holder_spec(identity: str, duration: timedelta, now: datetime) -> Object:
    """Build the spec fields that name the holder and the lease duration, acquired at `now`."""
    timestamp = format_micro_time(now)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(duration.total_seconds()),
        "acquireTime": timestamp,
        "renewTime": timestamp,
    }


def build_takeover_patch(lease: Lease, desired: Object) -> Object:
    """Build the merge patch that turns `lease` into `desired`; it fails if another client has changed the lease."""
    version = lease["metadata"]["resourceVersion"]
    annotations, before = desired["metadata"]["annotations"], lease["spec"]
    transitions = before.get("leaseTransitions") or 0
    if parse_holder(lease) == parse_holder(desired):
        kept = {"acquireTime": before.get("acquireTime"), "leaseTransitions": transitions}
    else:
        kept = {"leaseTransitions": transitions + 1}
    return {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": {**desired["spec"], **kept}}
