"""Has one install of the product act on a cluster, however many there are (DRN-15).

`begin` takes a claim that nobody has; `resync` does so at its tick, and takes it over from an install that is gone.
Every function of the maintenance wing that hears of something from outside the chain asks whose it is before it acts;
what follows in the chain follows only from that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping
from datetime import datetime, timezone
from threading import Lock
from weakref import WeakKeyDictionary

from prometheus_client import Gauge

from functions.announcing import refusal
from functions.failures import Retry
from kube import install_claim
from kube.door.access_reviews import whoami
from kube.door.api import absent_ok
from kube.door.api_errors import Conflict, Denied, NotFound
from kube.door.sync_client import Cluster
from kube.install_claim import Account
from kube.paths import LEASE_NAMESPACE, LEASES, Object

CONFIRMED_SECONDS = 60.0
"""So long is it believed that the claim is ours: another install takes it only when our account is gone, or by hand."""
SAID_SECONDS = 600.0
"""Between two times that a passive install says that it is."""
PASSIVE = Gauge("nodemaintenance_install_passive", "1 where another install of the cluster acts")
log = logging.getLogger("functions")


class Claims:
    """What this process knows of the claim, by the door that it asks through. Safe between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._accounts: MutableMapping[Cluster, Account | None] = WeakKeyDictionary()
        self._confirmed: MutableMapping[Cluster, float] = WeakKeyDictionary()
        self._said: dict[str, float] = {}

    def own(self, cluster: Cluster) -> Account | None:
        """The account of this install; None where a person is asking."""
        if cluster not in self._accounts:
            self._accounts[cluster] = install_claim.account_of(cluster.run(whoami(cluster.api)))
        return self._accounts[cluster]

    def is_confirmed(self, cluster: Cluster) -> bool:
        """Whether it was ours a moment ago."""
        return time.monotonic() < self._confirmed.get(cluster, 0.0)

    def confirm(self, cluster: Cluster) -> None:
        """It is ours, or nobody's."""
        self._confirmed[cluster] = time.monotonic() + CONFIRMED_SECONDS
        self._said.clear()
        PASSIVE.set(0)

    def is_to_be_said(self, way: str) -> bool:
        """Whether it is time to say again, in that way, that this install is passive."""
        PASSIVE.set(1)
        with self._lock:
            now = time.monotonic()
            if now - self._said.get(way, -SAID_SECONDS) < SAID_SECONDS:
                return False
            self._said[way] = now
            return True


CLAIMS = Claims()


def acts(cluster: Cluster, *, takes: bool = False) -> bool:
    """Whether this install may act: the claim is its own, or nobody has taken it yet. A person may at all times.

    With `takes` it takes that of nobody. Raises `Retry` when another one was there first.
    """
    if CLAIMS.is_confirmed(cluster):
        return True
    own = CLAIMS.own(cluster)
    if own is None:
        return True
    claim = cluster.run(absent_ok(cluster.api.get(install_claim.CLAIM_PATH)))
    other = install_claim.holder(claim) if claim else None
    if other is not None and other.namespace != own.namespace:
        _say(own, other)
        return False
    if claim is None and takes:
        _take(own, cluster)
    if other is not None or (claim is None and takes):
        CLAIMS.confirm(cluster)
    return True


def _take(own: Account, cluster: Cluster) -> None:
    """Create the claim, whose name only one can have."""
    try:
        cluster.create(LEASES, install_claim.claim_of(own, datetime.now(timezone.utc)))
    except Conflict:
        raise Retry("another install was just taking the claim") from None
    except NotFound:
        raise Retry(f"the namespace {LEASE_NAMESPACE} is missing: apply the manifests again") from None


def claims(cluster: Cluster) -> bool:
    """Whether this install may act, for which it takes the claim: nobody has it, or an account that is gone.

    Raises `Retry` when another install was there first.
    """
    own = CLAIMS.own(cluster)
    if own is None or CLAIMS.is_confirmed(cluster):
        return True
    claim = cluster.run(absent_ok(cluster.api.get(install_claim.CLAIM_PATH)))
    other = install_claim.holder(claim) if claim else None
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
    """Whether an account is; one that we may not ask for is taken for one, and a person has to say otherwise."""
    try:
        return cluster.run(absent_ok(cluster.api.get(other.path))) is not None
    except Denied:
        return True


def _take_over(claim: Object, own: Account, cluster: Cluster) -> None:
    """Write our account into the claim, if nobody wrote it meanwhile."""
    try:
        cluster.patch(install_claim.CLAIM_PATH, install_claim.takeover_patch(claim, own, datetime.now(timezone.utc)))
    except (Conflict, NotFound):
        raise Retry("another install was just taking the claim") from None


def _before(other: Account | None) -> str:
    return f"{other.namespace}/{other.name} is gone, or of this install" if other else "none has the claim"


def _say(own: Account, other: Account) -> None:
    if CLAIMS.is_to_be_said("log"):
        log.warning(install_claim.passive_message(own, other))


def _announce(own: Account, other: Account, cluster: Cluster) -> None:
    """Say it, also by an Event about the claim; one that is there already stays."""
    _say(own, other)
    if not CLAIMS.is_to_be_said("Event"):
        return
    event: Object = install_claim.passive_event(own, other, datetime.now(timezone.utc))
    if error := cluster.run(refusal(cluster.api, event)):
        log.warning("the Event %s could not be written: %s", install_claim.PASSIVE, error.message)
