"""Acquires the Leases for `begin`: the node's Lease and, for a control-plane node, the quorum Lease (NMO-22, NMO-23).

The admission webhook is optional, and it may admit two maintenances that are created concurrently. `begin` therefore
checks etcd's quorum again while it holds the quorum Lease. Meanwhile, no other maintenance of a control-plane node can
begin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

from functions.failures import Failed, Retry
from kube.client.api import get_or_none
from kube.client.api_errors import ApiError, Conflict, NotFound
from kube.client.sync_client import SyncClient
from kube.maintenance import leases, quorum
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS
from kube.maintenance.lookup import list_maintenances, read_control_plane
from kube.nodes import Node, get_maintenance_uid
from kube.paths import Object, encode_path_segment

log = logging.getLogger("functions")


class LeaseHeldByOther(Exception):
    """Raised if another tool holds the node's Lease, or if a maintenance that has begun no longer holds it."""


@contextmanager
def hold_quorum_lease(node: Node, maintenance: m.Maintenance, client: SyncClient) -> Iterator[None]:
    """Hold the quorum Lease in the `with` block, so that no other maintenance begins on a control-plane node.

    Does nothing if `node` is not a control-plane node. Raises `Failed` if the maintenance would make etcd lose its
    quorum, and `Retry` if another maintenance holds the quorum Lease.
    """
    if not quorum.is_control_plane(node):
        yield
        return
    lease = _acquire_quorum_lease(maintenance, client)
    try:
        control_plane = client.run(read_control_plane(client.api, maintenance["metadata"]["uid"], m.owns_node))
        if blocker := quorum.find_disruption_blocker(node, control_plane):
            raise Failed(blocker)
        yield
    finally:
        _release_quorum_lease(lease, client)


def _acquire_quorum_lease(maintenance: m.Maintenance, client: SyncClient) -> Object:
    now = datetime.now(timezone.utc)
    desired = quorum.build_lease(maintenance, now)
    existing = client.run(get_or_none(client.api.get(quorum.LEASE_PATH)))
    try:
        if existing is None:
            return client.create(leases.LEASES_PATH, desired)
        if quorum.may_acquire(existing, maintenance, now):
            version = existing["metadata"]["resourceVersion"]
            return client.patch(quorum.LEASE_PATH, {"metadata": {"resourceVersion": version}, "spec": desired["spec"]})
    except (Conflict, NotFound):
        pass
    raise Retry("another maintenance is beginning on a control-plane node")


def _release_quorum_lease(lease: Object, client: SyncClient) -> None:
    """Release the quorum Lease; if the API server rejects that, other maintenances wait until the Lease expires."""
    # Use `get`, because a Lease that was created in a dry run has no resourceVersion.
    version = lease["metadata"].get("resourceVersion")
    try:
        client.patch(quorum.LEASE_PATH, {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": None}})
    except ApiError as error:
        log.warning('cannot release lease "%s": %s', quorum.LEASE_NAME, error.message)


def acquire_lease(lease: Object | None, maintenance: m.Maintenance, node: Node, client: SyncClient) -> None:
    """Acquire or renew the node's Lease; `lease` is its current state, None if it was not read or does not exist.

    Raises `Failed` if another maintenance holds the node or its Lease. Raises `LeaseHeldByOther` if another tool holds
    the Lease, or if this maintenance has lost it. Raises `Retry` if another client changes the Lease during the call.
    """
    name, now = node["metadata"]["name"], datetime.now(timezone.utc)
    desired = leases.build_lease(name, maintenance, now)
    if lease is None:
        _check_node_free(node, maintenance, client)
        lease = _create_lease(desired, name, client)
    if lease is None:
        return
    try:
        if not leases.is_holder(lease, maintenance):
            _check_lease_available(lease, maintenance, name, now, client)
            _take_over_lease(lease, desired, client)
        elif leases.is_renewal_due(lease, now):
            _take_over_lease(lease, desired, client)
    except Conflict:
        raise Retry(f'the lease of node "{name}" changed while it was being acquired') from None


def _check_node_free(node: Node, maintenance: m.Maintenance, client: SyncClient) -> None:
    """Raise `Failed` if another maintenance holds the node, even if a client deleted that maintenance's Lease.

    The function lists the maintenances only if the node has the label of another maintenance.
    """
    name, uid = node["metadata"]["name"], maintenance["metadata"]["uid"]
    if m.has_begun(maintenance) or get_maintenance_uid(node) in (None, uid):
        return
    for other in client.run(list_maintenances(client.api, name)):
        if other["metadata"]["uid"] != uid and m.owns_node(other):
            raise Failed(_format_already_exists_message(name, other["metadata"]["name"], other["apiVersion"]))


def _create_lease(desired: Object, node: str, client: SyncClient) -> Object | None:
    """Create the Lease and return None, or return the existing Lease.

    Raises `Retry` if the existing Lease was deleted before it could be read.
    """
    try:
        client.create(leases.LEASES_PATH, desired)
    except Conflict:
        existing = client.run(get_or_none(client.api.get(leases.build_lease_path(node))))
        if existing is None:
            raise Retry(f'the lease of node "{node}" was released while it was being acquired') from None
        return existing
    return None


def _take_over_lease(lease: Object, desired: Object, client: SyncClient) -> None:
    """Replace the Lease's spec with that of `desired`.

    Raises `Conflict` if another client has changed the Lease, and `Retry` if it was deleted.
    """
    node = leases.parse_node_name(lease)
    try:
        client.patch(leases.build_lease_path(node), leases.build_takeover_patch(lease, desired))
    except NotFound:
        raise Retry(f'the lease of node "{node}" was released while it was being acquired') from None


def _check_lease_available(
    lease: Object, maintenance: m.Maintenance, node: str, now: datetime, client: SyncClient
) -> None:
    """Raise `Failed` or `LeaseHeldByOther` if `maintenance` must not acquire the Lease from its current holder.

    A Lease held by another maintenance is available if that maintenance no longer exists, is released, or has lost the
    Lease. A Lease held by another tool is available if it was released or has expired.
    """
    holder = leases.parse_holder(lease)
    if holder is None:
        if not leases.is_available(lease, now):
            raise LeaseHeldByOther(f'the lease of node "{node}" is held by {lease["spec"].get("holderIdentity")}')
        return
    group = GROUPS.get(holder.api_version)
    holding_maintenance = (
        client.run(get_or_none(client.api.get(f"{group.path}/{encode_path_segment(holder.name)}"))) if group else None
    )
    if (
        holding_maintenance is not None
        and holding_maintenance["metadata"]["uid"] == holder.uid
        and m.owns_or_awaits_node(holding_maintenance)
    ):
        if m.has_begun(maintenance):
            raise LeaseHeldByOther(f'the lease of node "{node}" is held by {holder.name} ({holder.api_version})')
        raise Failed(_format_already_exists_message(node, holder.name, holder.api_version))


def _format_already_exists_message(node: str, existing_name: str, api_version: str) -> str:
    return f"invalid nodeName, a NodeMaintenance for node {node} already exists: {existing_name} ({api_version})"
