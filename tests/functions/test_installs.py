"""Tests of two installs: while another install holds the install Lease, no function acts on an event (DRN-15)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from functions import installs as acting
from kube import install_lease
from kube.client.api import absent_ok
from kube.client.sync_client import Cluster
from kube.install_lease import Account
from kube.maintenance import objects as m
from kube.paths import LEASE_NAMESPACE, LEASES, Object, events_path
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, node_updated, said, tick, updated
from tests.proofs import proves
from tests.workload import Workload, audit, written

OURS, THEIRS = Account("node-maintenance", "resync"), Account("kubevirt-hyperconverged", "functions")
ACCOUNTS = f"/api/v1/namespaces/{THEIRS.namespace}/serviceaccounts"


@pytest.fixture(autouse=True)
def theirs(admin: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Create the other install's account, delete the install Lease before and after the test, and clear the cache."""
    namespaces = "/api/v1/namespaces"
    if admin.run(absent_ok(admin.api.get(f"{namespaces}/{THEIRS.namespace}"))) is None:
        admin.create(namespaces, {"metadata": {"name": THEIRS.namespace}})
    if admin.run(absent_ok(admin.api.get(THEIRS.path))) is None:
        admin.create(ACCOUNTS, {"metadata": {"name": THEIRS.name}})
    monkeypatch.setattr(acting, "CLAIMS", acting.Claims())
    drop(admin)
    yield
    drop(admin)


def drop(admin: Cluster) -> None:
    found = admin.run(absent_ok(admin.api.get(install_lease.CLAIM_PATH)))
    if found:
        admin.delete(install_lease.CLAIM_PATH, uid=found["metadata"]["uid"])


def taken_by(admin: Cluster, account: Account) -> None:
    admin.create(LEASES, install_lease.claim_of(account, datetime.now(timezone.utc)))


def hints(work: Workload, maintenance: Object, node: str) -> dict[str, CloudEvent]:
    """Return function → event that makes the function act; it comes from a source or follows from such an event."""
    closed = work.read_node(node)
    opened = {**closed, "spec": {**closed["spec"], "unschedulable": False, "taints": []}}
    return {
        "begin": added(work.maintenance(work.node())),
        "evict": said(events.PODS_GONE, maintenance),
        "status": said(events.PODS_GONE, maintenance),
        "guard": node_updated(opened),
        "restore": updated(work.again(maintenance)),
        "resync": tick(),
    }


@proves("DRN-15")
def test_while_another_install_has_the_claim_nothing_is_written(
    functions: Functions,
    work: Workload,
    admin: Cluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Functions write only an Event while another install holds the Lease, and act again after it is deleted."""
    taken_by(admin, OURS)
    node = work.node()
    work.pods(node, "web")
    maintenance = work.maintenance(node)
    functions.prepare(maintenance)
    work.delete(m.path(maintenance))
    heard = hints(work, maintenance, node)
    drop(admin)
    taken_by(admin, THEIRS)
    monkeypatch.setattr(acting, "CLAIMS", acting.Claims())
    seen = audit(work.local)

    with caplog.at_level(logging.WARNING):
        answers = {name: functions.answer(name, event) for name, event in heard.items()}

    assert set(answers.values()) == {None}
    assert {(verb, kind) for verb, kind, _ in written(seen.writes_by())} == {("create", "events")}
    (message,) = {record.message for record in caplog.records if "does not act" in record.message}
    (event,) = admin.list(events_path(LEASE_NAMESPACE), fields=f"involvedObject.name={install_lease.CLAIM}")["items"]
    assert event["message"] == message
    drop(admin)
    assert functions.answer("restore", heard["restore"]) is not None
    assert functions.answer("begin", heard["begin"]) is not None


@proves("DRN-15")
def test_who_ticks_first_takes_the_claim_and_keeps_it(functions: Functions, admin: Cluster) -> None:
    """Check that `resync` acquires the Lease at its first tick and does not write it at the next tick."""
    functions.answer("resync", tick())
    claim = admin.get(install_lease.CLAIM_PATH)

    functions.answer("resync", tick())

    assert install_lease.holder(claim) == OURS
    assert admin.get(install_lease.CLAIM_PATH) == claim


@proves("DRN-15")
def test_the_claim_of_an_account_that_is_gone_is_taken_over(functions: Functions, admin: Cluster) -> None:
    """Check that `resync` takes over the Lease after the holder's ServiceAccount is deleted, and not earlier."""
    taken_by(admin, THEIRS)
    functions.answer("resync", tick())
    kept = install_lease.holder(admin.get(install_lease.CLAIM_PATH))
    admin.delete(THEIRS.path, uid=admin.get(THEIRS.path)["metadata"]["uid"])

    functions.answer("resync", tick())

    assert (kept, install_lease.holder(admin.get(install_lease.CLAIM_PATH))) == (THEIRS, OURS)


@proves("DRN-15")
def test_a_maintenance_that_begins_before_the_first_tick_takes_the_claim(
    functions: Functions, work: Workload, admin: Cluster
) -> None:
    """Check that `begin` acquires the Lease if no tick has done so: two installs must not begin concurrently.

    The next tick makes the ServiceAccount of `resync` the holder.
    """
    functions.answer("begin", added(work.maintenance(work.node())))
    begun = install_lease.holder(admin.get(install_lease.CLAIM_PATH))

    functions.answer("resync", tick())

    assert begun == Account(OURS.namespace, "begin")
    assert install_lease.holder(admin.get(install_lease.CLAIM_PATH)) == OURS


@proves("DRN-15")
def test_a_holder_that_nobody_may_ask_for_keeps_the_claim(
    functions: Functions, admin: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that `resync` leaves the Lease to an account that it has no right to read.

    It logs what an administrator can do.
    """
    stranger = Account(THEIRS.namespace, "stranger")
    taken_by(admin, stranger)

    with caplog.at_level(logging.WARNING):
        functions.answer("resync", tick())

    assert install_lease.holder(admin.get(install_lease.CLAIM_PATH)) == stranger
    assert f"or the Lease {LEASE_NAMESPACE}/{install_lease.CLAIM} is deleted" in caplog.text
