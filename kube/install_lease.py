"""The Lease that decides which of several installs of this product may act on a cluster. Pure functions.

An install is identified by its namespace. The Lease names the ServiceAccount of the install that acquired it. Another
install may take the Lease over after that account was deleted. The Lease therefore needs no renewals, and an idle
cluster sees no writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kube import kubernetes_events
from kube.paths import LEASE_NAMESPACE, LEASES, Object, segment
from kube.times import microtime

CLAIM = "nodemaintenance-install"
CLAIM_PATH = f"{LEASES}/{CLAIM}"
PASSIVE = "InstallIsPassive"
"""Reason of the Event that a second install records because it does not act."""
PREFIX = "system:serviceaccount:"


class Account(NamedTuple):
    """A ServiceAccount."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Return the path of the ServiceAccount object."""
        return f"/api/v1/namespaces/{segment(self.namespace)}/serviceaccounts/{segment(self.name)}"


def account_of(user: str) -> Account | None:
    """Return the ServiceAccount with this user name, None for any other user, who belongs to no install."""
    namespace, _, name = user.removeprefix(PREFIX).partition(":")
    return Account(namespace, name) if user.startswith(PREFIX) and name else None


def holder(claim: Mapping[str, Any]) -> Account | None:
    """Return the account that holds the install lease, None if it has no holder."""
    namespace, _, name = str((claim.get("spec") or {}).get("holderIdentity") or "").partition("/")
    return Account(namespace, name) if name else None


def claim_of(account: Account, now: datetime) -> Object:
    """Build the install lease with `account` as its holder."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": CLAIM, "namespace": LEASE_NAMESPACE},
        "spec": {"holderIdentity": f"{account.namespace}/{account.name}", "acquireTime": microtime(now)},
    }


def takeover_patch(claim: Mapping[str, Any], account: Account, now: datetime) -> Object:
    """Build a merge patch that makes `account` the holder; it fails if another client changed the Lease."""
    version = claim["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": claim_of(account, now)["spec"]}


def passive_message(own: Account, other: Account) -> str:
    """Return the message that a passive install logs and records, including what would make it active."""
    return (
        f"the install in namespace {own.namespace} does not act, since the one in namespace {other.namespace} does: "
        f"remove either; this one takes over when the ServiceAccount {other.namespace}/{other.name} is gone, or the "
        f"Lease {LEASE_NAMESPACE}/{CLAIM} is deleted"
    )


def passive_event(own: Account, other: Account, now: datetime) -> Object:
    """Build the Event with that message about the Lease; repeated calls give the same name."""
    involved = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": CLAIM, "namespace": LEASE_NAMESPACE}
    name = kubernetes_events.event_name(CLAIM, own.namespace, other.namespace)
    message = passive_message(own, other)
    return kubernetes_events.event(name, LEASE_NAMESPACE, involved, kubernetes_events.WARNING, PASSIVE, message, now)
