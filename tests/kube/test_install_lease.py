"""Tests for the holder of the install lease, and for the message that a passive install reports."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from kube import install_lease
from kube.install_lease import ServiceAccount

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
OWN_ACCOUNT, OTHER_ACCOUNT = (
    ServiceAccount("node-maintenance", "resync"),
    ServiceAccount("kubevirt-hyperconverged", "functions"),
)


@pytest.mark.parametrize(
    ("user", "account"),
    [
        ("system:serviceaccount:node-maintenance:resync", OWN_ACCOUNT),
        ("admin", None),
        ("system:serviceaccount:node-maintenance", None),
        ("node-maintenance:resync", None),
        ("", None),
    ],
)
def test_only_service_account_belongs_to_install(user: str, account: ServiceAccount | None) -> None:
    assert install_lease.parse_service_account(user) == account


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None}, {"holderIdentity": ""}, {"holderIdentity": "x"}])
def test_install_lease_without_account_has_no_holder(spec: dict[str, Any] | None) -> None:
    assert install_lease.parse_holder({"metadata": {}, "spec": spec}) is None


def test_takeover_makes_account_holder_of_install_lease() -> None:
    """Check that another install's lease is taken over only if it is unchanged since it was read."""
    lease = install_lease.build_lease(OTHER_ACCOUNT, NOW)
    read_lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": "7"}}

    patch = install_lease.build_takeover_patch(read_lease, OWN_ACCOUNT, NOW)

    assert install_lease.parse_holder(lease) == OTHER_ACCOUNT
    assert install_lease.parse_holder(patch) == OWN_ACCOUNT
    assert patch["metadata"] == {"resourceVersion": "7"}


def test_message_of_passive_install_names_active_install() -> None:
    """Check that a passive install reports in an Event on the Lease which install is active."""
    kubernetes_event = install_lease.build_passive_event(OTHER_ACCOUNT, OWN_ACCOUNT)

    assert kubernetes_event.message == install_lease.build_passive_message(OTHER_ACCOUNT, OWN_ACCOUNT)
    assert "in namespace kubevirt-hyperconverged is passive" in kubernetes_event.message
    assert "the install in namespace node-maintenance is active" in kubernetes_event.message
    assert (kubernetes_event.regarding["name"], kubernetes_event.event_type) == (install_lease.LEASE_NAME, "Warning")
    assert kubernetes_event.event_name == install_lease.build_passive_event(OTHER_ACCOUNT, OWN_ACCOUNT).event_name
    assert kubernetes_event.event_name != install_lease.build_passive_event(OWN_ACCOUNT, OTHER_ACCOUNT).event_name
