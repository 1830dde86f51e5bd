"""The node's Lease: only the NodeMaintenance that holds it may change the node (NMO-22, NMO-27, NMO-27a).

All medik8s remediators use the same Lease, with the same namespace and name, so that one of them at a time owns the
node.
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
"""Annotation on a node's Lease that identifies the holding NodeMaintenance as `apiVersion name uid`."""
HOLDER_PATTERN = re.compile(" ".join(3 * ["([!-~]{1,253})"]))
"""Matches a valid value of `HOLDER_ANNOTATION`.

Every client that may write Leases can set the annotation. Its parts become CloudEvent attributes, whose values may
contain only certain characters.
"""
LEASE_DURATION = timedelta(seconds=3600)
RENEW_AFTER, RENEWAL_JITTER = LEASE_DURATION / 2, LEASE_DURATION / 4
"""A Lease is renewed between `RENEW_AFTER` and `RENEW_AFTER + RENEWAL_JITTER` after its last renewal.

The time within this range is derived from the holder's uid, so that Leases acquired together are not renewed together.
It is long before the Lease expires.
"""
NAMESPACE, LEASES_PATH = LEASE_NAMESPACE, paths.LEASES_PATH


def build_lease_path(node_name: str) -> str:
    """Return the API path of the node's Lease."""
    return f"{LEASES_PATH}/{encode_path_segment(build_lease_name(node_name))}"


def build_lease_name(node_name: str) -> str:
    """Return the name of the node's Lease."""
    return f"node-{node_name}"


def parse_node_name(lease: Lease) -> str:
    """Return the name of the node whose Lease this is, "" for any other Lease in the shared namespace."""
    kind, _, name = str(lease["metadata"]["name"]).partition("-")
    return name if kind == "node" else ""


class LeaseHolder(NamedTuple):
    """Identity of the NodeMaintenance that holds a node's Lease."""

    api_version: str
    name: str
    uid: str


def parse_holder(lease: Lease) -> LeaseHolder | None:
    """Return the NodeMaintenance that holds the Lease.

    The result is None if another tool holds the Lease, or the node-maintenance-operator that this project replaces.
    """
    match = HOLDER_PATTERN.fullmatch((lease["metadata"].get("annotations") or {}).get(HOLDER_ANNOTATION, ""))
    is_own_identity = lease["spec"].get("holderIdentity") == HOLDER_IDENTITY
    return LeaseHolder(*match.groups()) if match and is_own_identity else None


def is_holder(lease: Lease, maintenance: Maintenance) -> bool:
    """Return whether this maintenance, identified by its uid, holds the Lease."""
    holder = parse_holder(lease)
    return holder is not None and holder.uid == maintenance["metadata"]["uid"]


def is_available(lease: Lease, now: datetime) -> bool:
    """Return whether a Lease that no NodeMaintenance holds may be acquired, because it is released or has expired.

    A Lease that the replaced node-maintenance-operator holds may also be acquired. Both use the same holder identity,
    and this project takes over the operator's maintenances.
    """
    identity = lease["spec"].get("holderIdentity")
    is_legacy_lease = identity == HOLDER_IDENTITY and parse_holder(lease) is None
    return not identity or is_legacy_lease or is_expired(lease, now)


def is_expired(lease: Lease, now: datetime) -> bool:
    """Return whether the Lease has expired because it was not renewed in time."""
    return now - _parse_renew_time(lease) > timedelta(seconds=lease["spec"].get("leaseDurationSeconds") or 0)


def is_renewal_due(lease: Lease, now: datetime) -> bool:
    """Return whether the Lease must be renewed now.

    A renewal is due after `RENEW_AFTER` plus a fraction of `RENEWAL_JITTER` that is derived from the holder's uid.
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
    """Build the Lease of `node_name`, which `maintenance` holds from `now` on."""
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
    """Build the spec fields of a Lease that `identity` acquires at `now` for `duration`."""
    timestamp = format_micro_time(now)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(duration.total_seconds()),
        "acquireTime": timestamp,
        "renewTime": timestamp,
    }


def build_takeover_patch(lease: Lease, desired: Object) -> Object:
    """Build the merge patch that turns `lease` into `desired`; it fails if another client has changed the Lease."""
    version = lease["metadata"]["resourceVersion"]
    annotations, before = desired["metadata"]["annotations"], lease["spec"]
    transitions = before.get("leaseTransitions") or 0
    if parse_holder(lease) == parse_holder(desired):
        kept = {"acquireTime": before.get("acquireTime"), "leaseTransitions": transitions}
    else:
        kept = {"leaseTransitions": transitions + 1}
    return {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": {**desired["spec"], **kept}}
