"""Lets one maintenance at a time begin on a control-plane node, and none that would break etcd's quorum (NMO-23).

Two maintenances that are created concurrently both pass the admission webhook, and the webhook is optional. So `begin`
checks the quorum again while it holds a lease: the holder sees all maintenances that have begun, and the others wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

from functions.failures import Failed, Retry
from kube.client.api import absent_ok
from kube.client.api_errors import ApiError, Conflict, NotFound
from kube.client.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.leases import LEASES
from kube.maintenance.lookup import control_plane
from kube.nodes import Node
from kube.paths import Object

log = logging.getLogger("functions")


@contextmanager
def disrupting(node: Node, maintenance: m.Maintenance, cluster: Cluster) -> Iterator[None]:
    """Ensure that no other maintenance begins on a control-plane node during the block; other nodes cost no request.

    Raises `Failed` if etcd would lose its quorum, `Retry` while another maintenance begins.
    """
    if not quorum.is_control_plane(node):
        yield
        return
    lease = _acquire(maintenance, cluster)
    try:
        plane = cluster.run(control_plane(cluster.api, maintenance["metadata"]["uid"], m.has_node))
        if refused := quorum.refusal(node, plane):
            raise Failed(refused)
        yield
    finally:
        _release(lease, cluster)


def _acquire(maintenance: m.Maintenance, cluster: Cluster) -> Object:
    now = datetime.now(timezone.utc)
    wanted = quorum.lease_for(maintenance, now)
    found = cluster.run(absent_ok(cluster.api.get(quorum.LEASE_PATH)))
    try:
        if found is None:
            return cluster.create(LEASES, wanted)
        if quorum.may_take(found, maintenance, now):
            version = found["metadata"]["resourceVersion"]
            return cluster.patch(quorum.LEASE_PATH, {"metadata": {"resourceVersion": version}, "spec": wanted["spec"]})
    except (Conflict, NotFound):
        pass
    raise Retry("another maintenance is just beginning on a control-plane node")


def _release(lease: Object, cluster: Cluster) -> None:
    """Release the lease; if that fails, the next maintenance waits until the lease expires."""
    version = lease["metadata"].get("resourceVersion")  # missing in a dry run
    try:
        cluster.patch(quorum.LEASE_PATH, {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": None}})
    except ApiError as error:
        log.warning("the lease %s was not released: %s", quorum.LEASE, error.message)
