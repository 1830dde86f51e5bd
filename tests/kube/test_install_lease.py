"""Tests of the holder of the install lease, and of the message of a passive install."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from kube import install_lease
from kube.install_lease import Account

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
HERE, THERE = Account("node-maintenance", "resync"), Account("kubevirt-hyperconverged", "functions")


@pytest.mark.parametrize(
    ("user", "account"),
    [
        ("system:serviceaccount:node-maintenance:resync", HERE),
        ("admin", None),
        ("system:serviceaccount:node-maintenance", None),
        ("node-maintenance:resync", None),
        ("", None),
    ],
)
def test_an_account_belongs_to_an_install_and_a_person_to_none(user: str, account: Account | None) -> None:
    assert install_lease.account_of(user) == account


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None}, {"holderIdentity": ""}, {"holderIdentity": "x"}])
def test_a_claim_without_an_account_is_nobodys(spec: dict[str, Any] | None) -> None:
    assert install_lease.holder({"metadata": {}, "spec": spec}) is None


def test_who_takes_the_claim_is_its_holder() -> None:
    """Take over another install's lease only in the version that was read."""
    claim = install_lease.claim_of(THERE, NOW)
    read = {**claim, "metadata": {**claim["metadata"], "resourceVersion": "7"}}

    patch = install_lease.takeover_patch(read, HERE, NOW)

    assert install_lease.holder(claim) == THERE
    assert install_lease.holder(patch) == HERE
    assert patch["metadata"] == {"resourceVersion": "7"}


def test_a_second_install_names_both_and_what_helps() -> None:
    """Record the message in one Event, with the same name each time."""
    event = install_lease.passive_event(THERE, HERE, NOW)

    assert event["message"] == install_lease.passive_message(THERE, HERE)
    assert "kubevirt-hyperconverged does not act, since the one in namespace node-maintenance does" in event["message"]
    assert event["involvedObject"]["name"] == install_lease.CLAIM
    assert event["metadata"]["name"] == install_lease.passive_event(THERE, HERE, NOW)["metadata"]["name"]
    assert event["metadata"]["name"] != install_lease.passive_event(HERE, THERE, NOW)["metadata"]["name"]
