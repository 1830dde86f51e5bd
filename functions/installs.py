"""Ensures that at most one install of the product is active on a cluster (DRN-15).

The active install holds the install Lease. `begin` creates the Lease if it does not exist. On each PingSource event,
`resync` also creates a missing Lease, and takes the Lease over from an uninstalled install. Every function that
consumes events from event sources checks the Lease's holder before it acts. The other functions consume only events
that such a function emitted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping
from datetime import datetime, timezone
from threading import Lock
from weakref import WeakKeyDictionary

from prometheus_client import Gauge

from functions.event_recorder import EVENT_RECORDER
from functions.failures import Retry
from kube import install_lease
from kube.client.access_reviews import whoami
from kube.client.api import get_or_none
from kube.client.api_errors import Conflict, Denied, NotFound
from kube.client.sync_client import SyncClient
from kube.install_lease import ServiceAccount
from kube.paths import LEASE_NAMESPACE, LEASES_PATH, Object

CONFIRMATION_TTL_SECONDS = 60.0
"""Seconds after confirming that this install holds the Lease during which the Lease is not read again.

This is safe because another install takes over the Lease only if this install's ServiceAccount was deleted, or if an
administrator changes the Lease.
"""
REPORT_INTERVAL_SECONDS = 600.0
"""Minimum seconds between two log lines which report that this install is passive."""
PASSIVE_INSTALL = Gauge(
    "nodemaintenance_install_passive", "1 if this install is passive, because another install in the cluster is active"
)
log = logging.getLogger("functions")


class InstallLeaseCache:
    """Thread-safe cache, per API client, of this install's ServiceAccount and of whether it holds the install Lease."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._accounts: MutableMapping[SyncClient, ServiceAccount | None] = WeakKeyDictionary()
        self._confirmed_until: MutableMapping[SyncClient, float] = WeakKeyDictionary()
        self._reported_at = -REPORT_INTERVAL_SECONDS

    def get_account(self, client: SyncClient) -> ServiceAccount | None:
        """Return this install's ServiceAccount, or None if the API client authenticates as a human user."""
        if client not in self._accounts:
            self._accounts[client] = install_lease.parse_service_account(client.run(whoami(client.api)))
        return self._accounts[client]

    def is_confirmed(self, client: SyncClient) -> bool:
        """Return whether `confirm` was called for this client within the last `CONFIRMATION_TTL_SECONDS`."""
        return time.monotonic() < self._confirmed_until.get(client, 0.0)

    def confirm(self, client: SyncClient) -> None:
        """Record that this install holds the Lease now."""
        self._confirmed_until[client] = time.monotonic() + CONFIRMATION_TTL_SECONDS
        self._reported_at = -REPORT_INTERVAL_SECONDS
        PASSIVE_INSTALL.set(0)

    def should_log_passive(self) -> bool:
        """Return whether the caller should log now that this install is passive.

        Returns True at most once per `REPORT_INTERVAL_SECONDS`, and then stores the time. Also sets the metric to 1.
        """
        PASSIVE_INSTALL.set(1)
        with self._lock:
            now = time.monotonic()
            if now - self._reported_at < REPORT_INTERVAL_SECONDS:
                return False
            self._reported_at = now
            return True


INSTALL_LEASE_CACHE = InstallLeaseCache()


def is_active_install(client: SyncClient, *, acquire: bool = False) -> bool:
    """Return whether this install may act: it holds the install Lease, or no install holds the Lease.

    Returns True if the API client authenticates as a human user. If `acquire` is true, the function creates a missing
    Lease. Raises `Retry` if another install creates the Lease first.
    """
    if INSTALL_LEASE_CACHE.is_confirmed(client):
        return True
    account = INSTALL_LEASE_CACHE.get_account(client)
    if account is None:
        return True
    lease = client.run(get_or_none(client.api.get(install_lease.LEASE_PATH)))
    holder = install_lease.parse_holder(lease) if lease else None
    if holder is not None and holder.namespace != account.namespace:
        _log_passive(account, holder)
        return False
    if lease is None and acquire:
        _create_lease(account, client)
    if holder is not None or (lease is None and acquire):
        INSTALL_LEASE_CACHE.confirm(client)
    return True


def _create_lease(account: ServiceAccount, client: SyncClient) -> None:
    """Create the install Lease. Raises `Retry` if another install created it first, or if its namespace is missing."""
    try:
        client.create(LEASES_PATH, install_lease.build_lease(account, datetime.now(timezone.utc)))
    except Conflict:
        raise Retry("another install acquired the install Lease at the same time") from None
    except NotFound:
        raise Retry(f'namespace "{LEASE_NAMESPACE}" not found: apply the manifests again') from None


def acquire_install_lease(client: SyncClient) -> bool:
    """Acquire the install Lease if possible, and return whether this install may act.

    The function can acquire the Lease if the Lease has no holder, or if the holder's ServiceAccount no longer exists or
    belongs to this install. Raises `Retry` if another install acquires the Lease first.
    """
    account = INSTALL_LEASE_CACHE.get_account(client)
    if account is None or INSTALL_LEASE_CACHE.is_confirmed(client):
        return True
    lease = client.run(get_or_none(client.api.get(install_lease.LEASE_PATH)))
    holder = install_lease.parse_holder(lease) if lease else None
    if lease is None:
        _create_lease(account, client)
    elif holder != account:
        if holder is not None and holder.namespace != account.namespace and _account_exists(holder, client):
            _report_passive(account, holder, client)
            return False
        _take_over_lease(lease, account, client)
        log.warning("this install is active from now on: %s", _describe_previous_holder(holder))
    INSTALL_LEASE_CACHE.confirm(client)
    return True


def _account_exists(account: ServiceAccount, client: SyncClient) -> bool:
    """Return whether the ServiceAccount exists, or whether the API server denies reading it.

    If reading is denied, an administrator must change the install Lease's holder.
    """
    try:
        return client.run(get_or_none(client.api.get(account.path))) is not None
    except Denied:
        return True


def _take_over_lease(lease: Object, account: ServiceAccount, client: SyncClient) -> None:
    """Make this install the Lease's holder. Raises `Retry` if another client has changed or deleted the Lease."""
    try:
        client.patch(
            install_lease.LEASE_PATH, install_lease.build_takeover_patch(lease, account, datetime.now(timezone.utc))
        )
    except (Conflict, NotFound):
        raise Retry("another install acquired the install Lease at the same time") from None


def _describe_previous_holder(holder: ServiceAccount | None) -> str:
    if holder is None:
        return "the install Lease had no holder"
    return f"ServiceAccount {holder.namespace}/{holder.name}, the previous holder, is gone or belongs to this install"


def _log_passive(account: ServiceAccount, holder: ServiceAccount) -> None:
    if INSTALL_LEASE_CACHE.should_log_passive():
        log.warning(install_lease.build_passive_message(account, holder))


def _report_passive(account: ServiceAccount, holder: ServiceAccount, client: SyncClient) -> None:
    """Report that this install is passive, in the log and in an Event on the Lease."""
    _log_passive(account, holder)
    kubernetes_event = install_lease.build_passive_event(account, holder)
    client.run(EVENT_RECORDER.record(client.api, [kubernetes_event]))
