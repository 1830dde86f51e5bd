"""Ensures that only one install of the product is active on a cluster, however many there are (DRN-15).

The active install holds the install Lease. `begin` creates the Lease if it does not exist. At each tick, `resync` does
the same, and also takes the Lease over from an install that is gone. Every function that consumes events from outside
the event chain checks the holder before it acts. The other functions consume only events that such a function emitted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping
from datetime import datetime, timezone
from threading import Lock
from weakref import WeakKeyDictionary

from prometheus_client import Gauge

from functions.kubernetes_events import refusal
from functions.failures import Retry
from kube import install_lease
from kube.client.access_reviews import whoami
from kube.client.api import absent_ok
from kube.client.api_errors import Conflict, Denied, NotFound
from kube.client.sync_client import Cluster
from kube.install_lease import Account
from kube.paths import LEASE_NAMESPACE, LEASES, Object

CONFIRMED_SECONDS = 60.0
"""Seconds for which a confirmed Lease is trusted without another read.

Another install takes the Lease only if this install's ServiceAccount is gone or an administrator changes the Lease.
"""
SAID_SECONDS = 600.0
"""Minimum seconds between two reports of an install that it is passive."""
PASSIVE = Gauge("nodemaintenance_install_passive", "1 where another install of the cluster acts")
log = logging.getLogger("functions")


class Claims:
    """Cache of what this process knows about the install Lease, per API client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._accounts: MutableMapping[Cluster, Account | None] = WeakKeyDictionary()
        self._confirmed: MutableMapping[Cluster, float] = WeakKeyDictionary()
        self._said: dict[str, float] = {}

    def own(self, cluster: Cluster) -> Account | None:
        """Return this install's ServiceAccount; None if the API client authenticates as a person."""
        if cluster not in self._accounts:
            self._accounts[cluster] = install_lease.account_of(cluster.run(whoami(cluster.api)))
        return self._accounts[cluster]

    def is_confirmed(self, cluster: Cluster) -> bool:
        """Return whether this install was confirmed as the holder within the last `CONFIRMED_SECONDS`."""
        return time.monotonic() < self._confirmed.get(cluster, 0.0)

    def confirm(self, cluster: Cluster) -> None:
        """Record that this install holds the Lease now."""
        self._confirmed[cluster] = time.monotonic() + CONFIRMED_SECONDS
        self._said.clear()
        PASSIVE.set(0)

    def is_to_be_said(self, way: str) -> bool:
        """Return whether it is time to report by `way` ("log" or "Event") that this install is passive.

        Also sets the metric to passive, and remembers the time of the report.
        """
        PASSIVE.set(1)
        with self._lock:
            now = time.monotonic()
            if now - self._said.get(way, -SAID_SECONDS) < SAID_SECONDS:
                return False
            self._said[way] = now
            return True


CLAIMS = Claims()


def acts(cluster: Cluster, *, takes: bool = False) -> bool:
    """Return whether this install may act: it holds the install Lease, or no install does. A person may always act.

    If `takes` is true, the function creates a missing Lease. Raises `Retry` if another install creates it first.
    """
    if CLAIMS.is_confirmed(cluster):
        return True
    own = CLAIMS.own(cluster)
    if own is None:
        return True
    claim = cluster.run(absent_ok(cluster.api.get(install_lease.CLAIM_PATH)))
    other = install_lease.holder(claim) if claim else None
    if other is not None and other.namespace != own.namespace:
        _say(own, other)
        return False
    if claim is None and takes:
        _take(own, cluster)
    if other is not None or (claim is None and takes):
        CLAIMS.confirm(cluster)
    return True


def _take(own: Account, cluster: Cluster) -> None:
    """Create the install Lease. Raises `Retry` if another install was faster or the namespace is missing."""
    try:
        cluster.create(LEASES, install_lease.claim_of(own, datetime.now(timezone.utc)))
    except Conflict:
        raise Retry("another install was just taking the claim") from None
    except NotFound:
        raise Retry(f"the namespace {LEASE_NAMESPACE} is missing: apply the manifests again") from None


def claims(cluster: Cluster) -> bool:
    """Return whether this install may act, and acquire the install Lease for it if possible.

    The Lease can be acquired if it has no holder, or if the holder's ServiceAccount is gone or belongs to this install.
    Raises `Retry` if another install acquires it first.
    """
    own = CLAIMS.own(cluster)
    if own is None or CLAIMS.is_confirmed(cluster):
        return True
    claim = cluster.run(absent_ok(cluster.api.get(install_lease.CLAIM_PATH)))
    other = install_lease.holder(claim) if claim else None
    if claim is None:
        _take(own, cluster)
    elif other != own:
        if other is not None and other.namespace != own.namespace and _is_there(other, cluster):
            _announce(own, other, cluster)
            return False
        _take_over(claim, own, cluster)
        log.warning("this install acts from now on: %s", _before(other))
    CLAIMS.confirm(cluster)
    return True


def _is_there(other: Account, cluster: Cluster) -> bool:
    """Return whether the ServiceAccount exists.

    If the API server denies the read, the function assumes that it exists; the administrator must resolve that case.
    """
    try:
        return cluster.run(absent_ok(cluster.api.get(other.path))) is not None
    except Denied:
        return True


def _take_over(claim: Object, own: Account, cluster: Cluster) -> None:
    """Make this install the holder. Raises `Retry` if another client has changed the Lease since it was read."""
    try:
        cluster.patch(install_lease.CLAIM_PATH, install_lease.takeover_patch(claim, own, datetime.now(timezone.utc)))
    except (Conflict, NotFound):
        raise Retry("another install was just taking the claim") from None


def _before(other: Account | None) -> str:
    return f"{other.namespace}/{other.name} is gone, or of this install" if other else "none has the claim"


def _say(own: Account, other: Account) -> None:
    if CLAIMS.is_to_be_said("log"):
        log.warning(install_lease.passive_message(own, other))


def _announce(own: Account, other: Account, cluster: Cluster) -> None:
    """Report in the log, and by an Event on the Lease, that this install is passive."""
    _say(own, other)
    if not CLAIMS.is_to_be_said("Event"):
        return
    event: Object = install_lease.passive_event(own, other, datetime.now(timezone.utc))
    if error := cluster.run(refusal(cluster.api, event)):
        log.warning("the Event %s could not be written: %s", install_lease.PASSIVE, error.message)
