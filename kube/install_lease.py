"""The Lease that determines which of several installs of this project is active in a cluster. Pure functions.

An install is identified by its namespace. The Lease's holder is the ServiceAccount of the active install. Another
install may take over the Lease after that ServiceAccount was deleted. The Lease therefore needs no renewals, which
would cause writes in an idle cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kube.kubernetes_events import KubernetesEvent
from kube.paths import LEASE_NAMESPACE, LEASES_PATH, Object, encode_path_segment
from kube.times import format_micro_time

LEASE_NAME = "nodemaintenance-install"
LEASE_PATH = f"{LEASES_PATH}/{LEASE_NAME}"
PASSIVE_REASON = "InstallIsPassive"
"""Reason of the Kubernetes Event that a passive install records."""
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"


class ServiceAccount(NamedTuple):
    """A ServiceAccount's namespace and name."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Return the API path of the ServiceAccount."""
        return (
            f"/api/v1/namespaces/{encode_path_segment(self.namespace)}/serviceaccounts/{encode_path_segment(self.name)}"
        )


def parse_service_account(user: str) -> ServiceAccount | None:
    """Parse the user name of a ServiceAccount; return None for a user that is not a ServiceAccount."""
    namespace, _, name = user.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    return ServiceAccount(namespace, name) if user.startswith(SERVICE_ACCOUNT_PREFIX) and name else None


def parse_holder(lease: Mapping[str, Any]) -> ServiceAccount | None:
    """Return the ServiceAccount that holds the install Lease, None if the Lease has no holder."""
    namespace, _, name = str((lease.get("spec") or {}).get("holderIdentity") or "").partition("/")
    return ServiceAccount(namespace, name) if name else None


def build_lease(account: ServiceAccount, now: datetime) -> Object:
    """Build the install Lease with `account` as its holder."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LEASE_NAME, "namespace": LEASE_NAMESPACE},
        "spec": {"holderIdentity": f"{account.namespace}/{account.name}", "acquireTime": format_micro_time(now)},
    }


def build_takeover_patch(lease: Mapping[str, Any], account: ServiceAccount, now: datetime) -> Object:
    """Build a merge patch that makes `account` the holder; the patch fails if another client changed the Lease."""
    version = lease["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": build_lease(account, now)["spec"]}


def build_passive_message(account: ServiceAccount, holder: ServiceAccount) -> str:
    """Return the message that a passive install logs and records: why it is passive, and what would activate it."""
    return (
        f"the install in namespace {account.namespace} is passive, because the install in namespace "
        f"{holder.namespace} is active: remove one of them; the passive install becomes active after the "
        f"ServiceAccount {holder.namespace}/{holder.name} or the Lease {LEASE_NAMESPACE}/{LEASE_NAME} is deleted"
    )


def build_passive_event(account: ServiceAccount, holder: ServiceAccount) -> KubernetesEvent:
    """Build the Kubernetes Event which reports that this install is passive."""
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": LEASE_NAME, "namespace": LEASE_NAMESPACE}
    return KubernetesEvent(lease, PASSIVE_REASON, build_passive_message(account, holder))
