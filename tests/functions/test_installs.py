"""Tests that functions ignore all events while another install holds the install Lease (DRN-15)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from functions import installs
from kube import install_lease
from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient
from kube.install_lease import ServiceAccount
from kube.maintenance import objects as m
from kube.paths import LEASE_NAMESPACE, LEASES_PATH, Object, build_events_path
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import (
    build_added_event,
    build_node_updated_event,
    build_product_event,
    build_tick,
    build_updated_event,
)
from tests.proofs import proves
from tests.workload import Workload, summarize_writes

OWN_ACCOUNT, OTHER_ACCOUNT = (
    ServiceAccount("node-maintenance", "resync"),
    ServiceAccount("kubevirt-hyperconverged", "functions"),
)
OTHER_ACCOUNTS_PATH = f"/api/v1/namespaces/{OTHER_ACCOUNT.namespace}/serviceaccounts"


@pytest.fixture(autouse=True)
def other_install(admin_client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Create a second install's ServiceAccount, and delete the install Lease before and after the test."""
    namespaces = "/api/v1/namespaces"
    if admin_client.run(get_or_none(admin_client.api.get(f"{namespaces}/{OTHER_ACCOUNT.namespace}"))) is None:
        admin_client.create(namespaces, {"metadata": {"name": OTHER_ACCOUNT.namespace}})
    if admin_client.run(get_or_none(admin_client.api.get(OTHER_ACCOUNT.path))) is None:
        admin_client.create(OTHER_ACCOUNTS_PATH, {"metadata": {"name": OTHER_ACCOUNT.name}})
    monkeypatch.setattr(installs, "INSTALL_LEASE_CACHE", installs.InstallLeaseCache())
    delete_install_lease(admin_client)
    yield
    delete_install_lease(admin_client)


def delete_install_lease(admin_client: SyncClient) -> None:
    lease = admin_client.run(get_or_none(admin_client.api.get(install_lease.LEASE_PATH)))
    if lease:
        admin_client.delete(install_lease.LEASE_PATH, uid=lease["metadata"]["uid"])


def create_install_lease(admin_client: SyncClient, account: ServiceAccount) -> None:
    admin_client.create(LEASES_PATH, install_lease.build_lease(account, datetime.now(timezone.utc)))


def build_events_by_function(workload: Workload, maintenance: Object, node: str) -> dict[str, CloudEvent]:
    """Return, by function name, an event to which the function of an active install responds with a write."""
    cordoned_node = workload.read_node(node)
    uncordoned_node = {**cordoned_node, "spec": {**cordoned_node["spec"], "unschedulable": False, "taints": []}}
    return {
        "begin": build_added_event(workload.create_maintenance(workload.take_node())),
        "evict": build_product_event(events.PODS_GONE, maintenance),
        "status": build_product_event(events.PODS_GONE, maintenance),
        "guard": build_node_updated_event(uncordoned_node),
        "restore": build_updated_event(workload.read_maintenance(maintenance)),
        "resync": build_tick(),
    }


@proves("DRN-15")
def test_passive_install_writes_no_resources(
    functions: Functions,
    workload: Workload,
    admin_client: SyncClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that functions write only a Kubernetes Event while another install holds the install Lease.

    After the Lease is deleted, the functions process events again.
    """
    create_install_lease(admin_client, OWN_ACCOUNT)
    node = workload.take_node()
    workload.create_bare_pods(node, "web")
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    workload.delete(m.build_path(maintenance))
    events_by_function = build_events_by_function(workload, maintenance, node)
    delete_install_lease(admin_client)
    create_install_lease(admin_client, OTHER_ACCOUNT)
    monkeypatch.setattr(installs, "INSTALL_LEASE_CACHE", installs.InstallLeaseCache())
    write_audit = AuditLog(workload.local_cluster.audit_log)

    with caplog.at_level(logging.WARNING):
        replies = {name: functions.invoke(name, event) for name, event in events_by_function.items()}

    assert set(replies.values()) == {None}
    assert {(verb, kind) for verb, kind, _ in summarize_writes(write_audit.list_writes_by())} == {("create", "events")}
    (message,) = {record.message for record in caplog.records if "is passive" in record.message}
    (event,) = admin_client.list(
        build_events_path(LEASE_NAMESPACE), field_selector=f"involvedObject.name={install_lease.LEASE_NAME}"
    )["items"]
    assert event["message"] == message
    delete_install_lease(admin_client)
    assert functions.invoke("restore", events_by_function["restore"]) is not None
    assert functions.invoke("begin", events_by_function["begin"]) is not None


@proves("DRN-15")
def test_first_tick_acquires_install_lease(functions: Functions, admin_client: SyncClient) -> None:
    """Check that `resync` acquires the install Lease at the first tick, and writes nothing to it at the next tick."""
    functions.invoke("resync", build_tick())
    lease = admin_client.get(install_lease.LEASE_PATH)

    functions.invoke("resync", build_tick())

    assert install_lease.parse_holder(lease) == OWN_ACCOUNT
    assert admin_client.get(install_lease.LEASE_PATH) == lease


@proves("DRN-15")
def test_install_lease_of_deleted_account_is_taken_over(functions: Functions, admin_client: SyncClient) -> None:
    """Check that `resync` takes over the install Lease only after the holder's ServiceAccount is deleted."""
    create_install_lease(admin_client, OTHER_ACCOUNT)
    functions.invoke("resync", build_tick())
    holder_before = install_lease.parse_holder(admin_client.get(install_lease.LEASE_PATH))
    admin_client.delete(OTHER_ACCOUNT.path, uid=admin_client.get(OTHER_ACCOUNT.path)["metadata"]["uid"])

    functions.invoke("resync", build_tick())

    assert (holder_before, install_lease.parse_holder(admin_client.get(install_lease.LEASE_PATH))) == (
        OTHER_ACCOUNT,
        OWN_ACCOUNT,
    )


@proves("DRN-15")
def test_begin_acquires_install_lease_before_first_tick(
    functions: Functions, workload: Workload, admin_client: SyncClient
) -> None:
    """Check that `begin` acquires the install Lease if no tick has done so, so that two installs do not both begin.
    The next tick makes the ServiceAccount of `resync` the holder.
    """
    functions.invoke("begin", build_added_event(workload.create_maintenance(workload.take_node())))
    holder = install_lease.parse_holder(admin_client.get(install_lease.LEASE_PATH))

    functions.invoke("resync", build_tick())

    assert holder == ServiceAccount(OWN_ACCOUNT.namespace, "begin")
    assert install_lease.parse_holder(admin_client.get(install_lease.LEASE_PATH)) == OWN_ACCOUNT


@proves("DRN-15")
def test_install_lease_of_unreadable_account_is_kept(
    functions: Functions, admin_client: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that `resync` does not take over the install Lease of a ServiceAccount that it may not read.

    `resync` logs a message that names the remedy for the administrator.
    """
    unreadable_account = ServiceAccount(OTHER_ACCOUNT.namespace, "stranger")
    create_install_lease(admin_client, unreadable_account)

    with caplog.at_level(logging.WARNING):
        functions.invoke("resync", build_tick())

    assert install_lease.parse_holder(admin_client.get(install_lease.LEASE_PATH)) == unreadable_account
    assert f"or the Lease {LEASE_NAMESPACE}/{install_lease.LEASE_NAME} is deleted" in caplog.text
