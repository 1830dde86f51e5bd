"""Has one install of the product act on a cluster, however many there are (DRN-15).

`resync` takes the claim at its tick, and takes it over from an install that is gone. Every function that hears of
something from outside the chain asks whose it is before it acts; what follows in the chain follows only from that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping
from datetime import datetime, timezone
from threading import Lock
from weakref import WeakKeyDictionary

from prometheus_client import Gauge

from functions.failures import Retry
from kube import installs
from kube.door.access_reviews import whoami
from kube.door.api import absent_ok
from kube.door.api_errors import ApiError, Conflict, NotFound
from kube.door.sync_client import Cluster
from kube.installs import Account
from kube.paths import LEASES, Object

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
            self._accounts[cluster] = installs.account_of(cluster.run(whoami(cluster.api)))
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


def acts(cluster: Cluster) -> bool:
    """Whether this install may act: the claim is its own, or nobody has taken it yet. A person may at all times."""
    if CLAIMS.is_confirmed(cluster):
        return True
    own = CLAIMS.own(cluster)
    if own is None:
        return True
    claim = cluster.run(absent_ok(cluster.api.get(installs.CLAIM_PATH)))
    other = installs.holder(claim) if claim else None
    if other is not None and other.namespace != own.namespace:
        _say(own, other)
        return False
    if other is not None:
        CLAIMS.confirm(cluster)
    return True


def claims(cluster: Cluster) -> bool:
    """Whether this install may act, for which it takes the claim: nobody has it, or an account that is gone.

    Raises `Retry` when another install was there first.
    """
    own, now = CLAIMS.own(cluster), datetime.now(timezone.utc)
    if own is None or CLAIMS.is_confirmed(cluster):
        return True
    claim = cluster.run(absent_ok(cluster.api.get(installs.CLAIM_PATH)))
    other = installs.holder(claim) if claim else None
    try:
        if claim is None:
            cluster.create(LEASES, installs.claim_of(own, now))
        elif other is None or other.namespace != own.namespace:
            if other is not None and cluster.run(absent_ok(cluster.api.get(other.path))):
                _announce(own, other, cluster)
                return False
            cluster.patch(installs.CLAIM_PATH, installs.takeover_patch(claim, own, now))
            log.warning("this install acts from now on: %s", _before(other))
    except (Conflict, NotFound):
        raise Retry("another install was just taking the claim") from None
    CLAIMS.confirm(cluster)
    return True


def _before(other: Account | None) -> str:
    return f"the one in namespace {other.namespace} is gone" if other else "none has the claim"


def _say(own: Account, other: Account) -> None:
    if CLAIMS.is_to_be_said("log"):
        log.warning(installs.passive_message(own, other))


def _announce(own: Account, other: Account, cluster: Cluster) -> None:
    """Say it, also by an Event about the claim; one that is there already stays."""
    _say(own, other)
    if not CLAIMS.is_to_be_said("Event"):
        return
    event: Object = installs.passive_event(own, other, datetime.now(timezone.utc))
    try:
        cluster.create(installs.EVENTS, event)
    except Conflict:
        pass
    except ApiError as error:
        log.warning("the Event %s could not be written: %s", installs.PASSIVE, error.message)
