"""Which install of the product may act on a cluster: the one that the claim names, a Lease that all installs see. Pure.

An install is known by its namespace. The claim names the account that took it; it is there for the next one to take
when that account is gone, so nothing has to be renewed, and a quiet cluster stays quiet.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kube import announcements
from kube.paths import LEASE_NAMESPACE, LEASES, Object, segment
from kube.times import microtime

CLAIM = "nodemaintenance-install"
CLAIM_PATH = f"{LEASES}/{CLAIM}"
PASSIVE = "InstallIsPassive"
"""Reason of the Event by which a second install says that it does not act."""
PREFIX = "system:serviceaccount:"


class Account(NamedTuple):
    """A ServiceAccount."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Path of the object."""
        return f"/api/v1/namespaces/{segment(self.namespace)}/serviceaccounts/{segment(self.name)}"


def account_of(user: str) -> Account | None:
    """The ServiceAccount that a user name stands for; None for a person, who belongs to no install."""
    namespace, _, name = user.removeprefix(PREFIX).partition(":")
    return Account(namespace, name) if user.startswith(PREFIX) and name else None


def holder(claim: Mapping[str, Any]) -> Account | None:
    """Who has taken the claim; None for nobody."""
    namespace, _, name = str((claim.get("spec") or {}).get("holderIdentity") or "").partition("/")
    return Account(namespace, name) if name else None


def claim_of(account: Account, now: datetime) -> Object:
    """The claim with that account as its holder."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": CLAIM, "namespace": LEASE_NAMESPACE},
        "spec": {"holderIdentity": f"{account.namespace}/{account.name}", "acquireTime": microtime(now)},
    }


def takeover_patch(claim: Mapping[str, Any], account: Account, now: datetime) -> Object:
    """Merge patch that makes that account the holder, if nobody wrote the claim meanwhile."""
    version = claim["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": claim_of(account, now)["spec"]}


def passive_message(own: Account, other: Account) -> str:
    """What a second install says, and what ends it."""
    return (
        f"the install in namespace {own.namespace} does not act, since the one in namespace {other.namespace} does: "
        f"remove either; this one takes over when the ServiceAccount {other.namespace}/{other.name} is gone, or the "
        f"Lease {LEASE_NAMESPACE}/{CLAIM} is deleted"
    )


def passive_event(own: Account, other: Account, now: datetime) -> Object:
    """The Event that says so, about the claim; the same one each time."""
    involved = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": CLAIM, "namespace": LEASE_NAMESPACE}
    name = announcements.event_name(CLAIM, own.namespace, other.namespace)
    message = passive_message(own, other)
    return announcements.event(name, LEASE_NAMESPACE, involved, announcements.WARNING, PASSIVE, message, now)
