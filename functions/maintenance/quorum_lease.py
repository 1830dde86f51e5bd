"""Lets only one maintenance at a time begin on a control-plane node, and only if etcd keeps its quorum (NMO-23).

Two maintenances that are created concurrently both pass the admission webhook, and the webhook is optional. So `begin`
checks the quorum again while it holds a lease: the holder sees all maintenances that have begun, and other maintenances
wait.
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
from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.leases import LEASES_PATH
from kube.maintenance.lookup import read_control_plane
from kube.nodes import Node
from kube.paths import Object

log = logging.getLogger("functions")


@contextmanager
def hold_quorum_lease(node: Node, maintenance: m.Maintenance, client: SyncClient) -> Iterator[None]:
    """Ensure that no other maintenance begins on a control-plane node during the block; do nothing for other nodes.

    Raises `Failed` if etcd would lose its quorum, and `Retry` if another maintenance is beginning.
    """
    if not quorum.is_control_plane(node):
        yield
        return
    lease = _acquire_lease(maintenance, client)
    try:
        control_plane = client.run(read_control_plane(client.api, maintenance["metadata"]["uid"], m.owns_node))
        if blocker := quorum.find_disruption_blocker(node, control_plane):
            raise Failed(blocker)
        yield
    finally:
        _release_lease(lease, client)


def _acquire_lease(maintenance: m.Maintenance, client: SyncClient) -> Object:
    now = datetime.now(timezone.utc)
    desired = quorum.build_lease(maintenance, now)
    existing = client.run(get_or_none(client.api.get(quorum.LEASE_PATH)))
    try:
        if existing is None:
            return client.create(LEASES_PATH, desired)
        if quorum.may_acquire(existing, maintenance, now):
            version = existing["metadata"]["resourceVersion"]
            return client.patch(quorum.LEASE_PATH, {"metadata": {"resourceVersion": version}, "spec": desired["spec"]})
    except (Conflict, NotFound):
        pass
    raise Retry("another maintenance is beginning on a control-plane node")


def _release_lease(lease: Object, client: SyncClient) -> None:
    """Release the lease; if that fails, the next maintenance waits until the lease expires."""
    # A lease that was created in a dry run has no resourceVersion.
    version = lease["metadata"].get("resourceVersion")
    try:
        client.patch(quorum.LEASE_PATH, {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": None}})
    except ApiError as error:
        log.warning('cannot release lease "%s": %s', quorum.LEASE_NAME, error.message)
