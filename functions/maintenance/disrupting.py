"""Lets one maintenance at a time begin on a control-plane node, and none that would break etcd's quorum (NMO-23).

Two that are created side by side both pass the door, and where no webhook is there is no door at all. So `begin` looks
again, under a lease: whoever holds it sees all that have begun, and the others wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

from functions.failures import Failed, Retry
from kube.door.api import absent_ok
from kube.door.api_errors import ApiError, Conflict, NotFound
from kube.door.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.leases import LEASES
from kube.maintenance.lookup import control_plane
from kube.nodes import Node
from kube.paths import Object

log = logging.getLogger("functions")


@contextmanager
def disrupting(node: Node, maintenance: m.Maintenance, cluster: Cluster) -> Iterator[None]:
    """A block in which nobody else begins on a control-plane node; of another node it costs nothing.

    Raises `Failed` when etcd would lose its quorum, `Retry` while somebody else begins.
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
    """Let the next one begin; if that fails, he waits until the lease is over."""
    version = lease["metadata"].get("resourceVersion")  # a dry run makes none
    try:
        cluster.patch(quorum.LEASE_PATH, {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": None}})
    except ApiError as error:
        log.warning("the lease %s was not released: %s", quorum.LEASE, error.message)
