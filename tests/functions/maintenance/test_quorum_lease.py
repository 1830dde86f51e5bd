"""Tests that `begin` preserves etcd's quorum on control-plane nodes without the admission webhook (NMO-18, NMO-23)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest

from chaos.api_fault_proxy import CONNECTION_RESET, NO_RESPONSE, Fault, FaultProxy
from eventing import events
from functions.event_data import require_data
from functions.serving import handler
from kube import install_lease
from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient
from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.groups import KUBEVIRT
from kube.maintenance.leases import LEASES_PATH
from kube.nodes import build_node_path
from localcluster import access
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added_event, build_updated_event
from tests.functions.request_hooks import run_before_request
from tests.proofs import proves
from tests.sources import ROOT
from tests.workload import Workload, summarize_writes

QUORUM_REQUESTS = (
    *("get leases", "create leases", "patch leases"),
    *("list nodes", "get poddisruptionbudgets", "list nodemaintenances"),
)
"""Additional requests of `begin` for a control-plane node, with or without an existing quorum lease."""
FAULTS = {
    "500": Fault(500, "fault injected by the test"),
    "503": Fault(503, "fault injected by the test"),
    "reset": CONNECTION_RESET,
    "silence": NO_RESPONSE,
}
REFUSAL_PREFIX = "can not put master/control-plane node into maintenance at this moment"


@pytest.fixture
def control_plane_nodes(workload: Workload, admin_client: SyncClient, clean_cluster: None) -> Iterator[list[str]]:
    """Yield the names of three control-plane nodes, and remove their control-plane label after the test."""
    names = [workload.take_node() for _ in range(3)]
    for name in names:
        admin_client.patch(build_node_path(name), {"metadata": {"labels": {quorum.CONTROL_PLANE_LABELS[0]: ""}}})
    yield names
    for name in names:
        admin_client.patch(build_node_path(name), {"metadata": {"labels": {quorum.CONTROL_PLANE_LABELS[0]: None}}})
    admin_client.run(get_or_none(admin_client.api.request("DELETE", quorum.LEASE_PATH)))


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the deadline for a function's API requests."""
    monkeypatch.setattr(handler, "API_DEADLINE_SECONDS", 0.8)


@proves("NMO-18", "NMO-23")
def test_begin_rejects_maintenance_of_second_control_plane_node(
    functions: Functions, workload: Workload, control_plane_nodes: list[str], audit: AuditLog
) -> None:
    first, second = (
        workload.create_maintenance(control_plane_nodes[0]),
        workload.create_maintenance(control_plane_nodes[1], KUBEVIRT),
    )
    functions.run_begin(first)

    reply = functions.invoke("begin", build_added_event(second))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_STEP_FAILED
    assert str(require_data(reply)["error"]).startswith(REFUSAL_PREFIX)
    assert not m.get_finalizers(workload.read_maintenance(second))
    second_writes = [entry for entry in summarize_writes(audit.list_writes_by()) if control_plane_nodes[1] in entry[2]]
    assert second_writes == []  # `begin` writes neither the node's lease nor the node.


@proves("NMO-23")
def test_begin_accepts_next_control_plane_node_after_release_of_first(
    functions: Functions, workload: Workload, control_plane_nodes: list[str], admin_client: SyncClient
) -> None:
    first, second = (
        workload.create_maintenance(control_plane_nodes[0]),
        workload.create_maintenance(control_plane_nodes[1]),
    )
    functions.run_begin(first)
    functions.invoke("begin", build_added_event(second))
    admin_client.patch(m.build_path(first), {"metadata": {"finalizers": None}})
    workload.delete(m.build_path(first))

    assert functions.run_begin(second).get_type() == events.MAINTENANCE_BEGUN


@proves("NMO-23", "NMO-27a")
def test_begin_accepts_next_control_plane_node_after_lost_lease_and_restore(
    functions: Functions, workload: Workload, control_plane_nodes: list[str], admin_client: SyncClient
) -> None:
    """Check that the node of a maintenance that lost its lease counts as disrupted until `restore` has restored it."""
    first, second = (
        workload.create_maintenance(control_plane_nodes[0]),
        workload.create_maintenance(control_plane_nodes[1]),
    )
    functions.run_until_tainted(first)
    admin_client.patch(f"{m.build_path(first)}/status", {"status": {"phase": m.FAILED, "errorOnLeaseCount": 4}})
    failure_event = functions.invoke("begin", build_added_event(second))
    assert failure_event is not None
    assert str(require_data(failure_event)["error"]).startswith(REFUSAL_PREFIX)

    functions.invoke("restore", build_updated_event(workload.read_maintenance(first)))

    assert functions.run_begin(second).get_type() == events.MAINTENANCE_BEGUN
    assert m.has_begun(workload.read_maintenance(first))


@proves("NMO-23")
def test_maintenance_with_copied_metadata_does_not_count_as_begun(
    functions: Functions, workload: Workload, control_plane_nodes: list[str]
) -> None:
    """Check that `begin` treats a maintenance with metadata copied from another maintenance as new."""
    workload.create_bare_pods(control_plane_nodes[0], "counted")
    first = workload.create_maintenance(control_plane_nodes[0])
    functions.run_begin(first)
    metadata = workload.read_maintenance(first)["metadata"]
    copied_metadata = {name: metadata[name] for name in ("finalizers", "annotations", "ownerReferences")}
    copied = workload.create_maintenance(control_plane_nodes[1], **copied_metadata)

    reply = functions.invoke("begin", build_added_event(copied))

    assert reply is not None
    assert str(require_data(reply)["error"]).startswith(REFUSAL_PREFIX)
    worker_maintenance = workload.create_maintenance(workload.take_node(), **copied_metadata)
    assert require_data(functions.run_begin(worker_maintenance))["totalpods"] == 0
    assert m.has_begun(workload.read_maintenance(worker_maintenance))


@proves("NMO-23")
def test_only_one_of_concurrent_maintenances_begins(
    functions: Functions, workload: Workload, control_plane_nodes: list[str]
) -> None:
    """Check that concurrent executions of `begin` for several control-plane nodes start only one maintenance.

    The other maintenances wait for the quorum lease and then fail.
    """
    maintenances = [workload.create_maintenance(name) for name in control_plane_nodes]

    def begin_with_retries(maintenance: m.Maintenance) -> str:
        while True:
            response = functions.post("begin", build_added_event(dict(maintenance)))
            if response.status_code != 503:
                return str(response.headers["ce-type"])

    with ThreadPoolExecutor(3) as pool:
        event_types = sorted(pool.map(begin_with_retries, maintenances))

    assert event_types == [events.MAINTENANCE_BEGUN, events.MAINTENANCE_STEP_FAILED, events.MAINTENANCE_STEP_FAILED]
    assert sum(m.has_begun(workload.read_maintenance(maintenance)) for maintenance in maintenances) == 1


def test_begin_answers_503_while_quorum_lease_is_held(
    functions: Functions, workload: Workload, control_plane_nodes: list[str], admin_client: SyncClient
) -> None:
    """Check that `begin` answers 503 while another maintenance holds the quorum lease, until that lease expires."""
    holder = workload.create_maintenance(control_plane_nodes[0])
    admin_client.create(LEASES_PATH, quorum.build_lease(holder, datetime.now(timezone.utc)))
    maintenance = workload.create_maintenance(control_plane_nodes[1])

    response = functions.post("begin", build_added_event(maintenance))
    assert (response.status_code, "control-plane node" in response.text) == (503, True)

    admin_client.patch(quorum.LEASE_PATH, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    functions.run_begin(maintenance)
    assert admin_client.get(quorum.LEASE_PATH)["spec"].get("holderIdentity") is None


@proves("NMO-23")
def test_begin_answers_503_if_quorum_lease_is_taken_concurrently(
    functions: Functions, workload: Workload, control_plane_nodes: list[str], admin_client: SyncClient
) -> None:
    """Check that `begin` answers 503 if another maintenance takes over the expired quorum lease first."""
    expired_lease = quorum.build_lease(workload.create_maintenance(control_plane_nodes[0]), datetime.now(timezone.utc))
    admin_client.create(LEASES_PATH, expired_lease)
    expire_quorum_lease(admin_client)
    other_spec = quorum.build_lease(workload.create_maintenance(control_plane_nodes[1]), datetime.now(timezone.utc))[
        "spec"
    ]
    maintenance = workload.create_maintenance(control_plane_nodes[2])

    with run_before_request(
        functions.clusters["begin"],
        "PATCH",
        quorum.LEASE_PATH,
        lambda: admin_client.patch(quorum.LEASE_PATH, {"spec": other_spec}),
    ):
        assert functions.post("begin", build_added_event(maintenance)).status_code == 503

    assert admin_client.get(quorum.LEASE_PATH)["spec"]["holderIdentity"] == other_spec["holderIdentity"]
    assert not m.has_begun(workload.read_maintenance(maintenance))


@proves("NMO-23")
def test_expired_quorum_lease_is_taken_over_and_released(
    functions: Functions, workload: Workload, control_plane_nodes: list[str], admin_client: SyncClient
) -> None:
    """Check that `begin` takes over an expired quorum lease, holds it during its patch, and then releases it."""
    admin_client.create(
        LEASES_PATH, quorum.build_lease(workload.create_maintenance(control_plane_nodes[0]), datetime.now(timezone.utc))
    )
    expire_quorum_lease(admin_client)
    maintenance = workload.create_maintenance(control_plane_nodes[1])
    holders: list[str] = []

    def record_holder() -> None:
        holders.append(admin_client.get(quorum.LEASE_PATH)["spec"]["holderIdentity"])

    with run_before_request(functions.clusters["begin"], "PATCH", m.build_path(maintenance), record_holder):
        functions.run_begin(maintenance)

    assert holders == [quorum.build_lease(maintenance, datetime.now(timezone.utc))["spec"]["holderIdentity"]]
    assert admin_client.get(quorum.LEASE_PATH)["spec"].get("holderIdentity") is None


@proves("NMO-23")
def test_quorum_lease_of_other_holder_is_not_released(
    functions: Functions,
    workload: Workload,
    control_plane_nodes: list[str],
    admin_client: SyncClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Check that `begin` does not release a quorum lease that another maintenance has taken over."""
    maintenance = workload.create_maintenance(control_plane_nodes[0])
    other_spec = quorum.build_lease(workload.create_maintenance(control_plane_nodes[1]), datetime.now(timezone.utc))[
        "spec"
    ]

    with run_before_request(
        functions.clusters["begin"],
        "PATCH",
        quorum.LEASE_PATH,
        lambda: admin_client.patch(quorum.LEASE_PATH, {"spec": other_spec}),
    ):
        functions.run_begin(maintenance)

    assert admin_client.get(quorum.LEASE_PATH)["spec"]["holderIdentity"] == other_spec["holderIdentity"]
    (line,) = [record for record in caplog.records if record.name == "functions"]
    assert line.message.startswith(f'cannot release lease "{quorum.LEASE_NAME}": ')
    assert "modified" in line.message


def test_begun_maintenance_needs_no_quorum_lease(
    functions: Functions, workload: Workload, control_plane_nodes: list[str], admin_client: SyncClient
) -> None:
    """Check that `begin` needs no quorum lease for a maintenance in progress."""
    maintenance = workload.create_maintenance(control_plane_nodes[0])
    functions.run_begin(maintenance)
    other_lease = quorum.build_lease(workload.create_maintenance(control_plane_nodes[1]), datetime.now(timezone.utc))
    admin_client.patch(quorum.LEASE_PATH, {"spec": other_lease["spec"]})

    assert functions.run_begin(maintenance).get_type() == events.MAINTENANCE_BEGUN


@pytest.mark.slow
@proves("NMO-23")
@pytest.mark.usefixtures("short_deadline")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("failed_request", QUORUM_REQUESTS)
def test_second_maintenance_does_not_begin_if_quorum_check_fails(
    functions: Functions,
    proxied_functions: Functions,
    fault_proxy: FaultProxy,
    workload: Workload,
    control_plane_nodes: list[str],
    admin_client: SyncClient,
    failed_request: str,
    fault: str,
) -> None:
    """Check that `begin` does not start a second maintenance if a request of the quorum check fails."""
    first, second = (
        workload.create_maintenance(control_plane_nodes[0]),
        workload.create_maintenance(control_plane_nodes[1], KUBEVIRT),
    )
    functions.run_begin(first)
    if failed_request == "create leases":
        admin_client.run(get_or_none(admin_client.api.request("DELETE", quorum.LEASE_PATH)))
    fault_proxy.inject(lambda request: FAULTS[fault] if request.rpartition(" ")[0] == failed_request else None)

    proxied_functions.post("begin", build_added_event(second))
    fault_proxy.stop_faults()

    assert not m.has_begun(workload.read_maintenance(second))
    expire_quorum_lease(admin_client)
    reply = functions.invoke("begin", build_added_event(second))
    assert reply is not None
    assert str(require_data(reply)["error"]).startswith(REFUSAL_PREFIX)


@pytest.mark.slow
@proves("NMO-23", "X-2")
@pytest.mark.parametrize("write_count", [1, 2, 3])
def test_killed_begin_resumes_on_redelivery(
    functions: Functions,
    workload: Workload,
    control_plane_nodes: list[str],
    admin_client: SyncClient,
    idle_cluster: LocalCluster,
    write_count: int,
) -> None:
    """Check that `begin` resumes on redelivery after it was killed between two writes, and that etcd keeps its quorum.

    Other maintenances wait until the quorum lease expires.
    """
    ensure_install_lease(admin_client)
    first, second = (
        workload.create_maintenance(control_plane_nodes[0]),
        workload.create_maintenance(control_plane_nodes[1]),
    )
    kubeconfig = idle_cluster.ensure_kubeconfig(access.make_username("begin"))
    command = [
        sys.executable,
        "-m",
        "tests.functions.maintenance.killed_begin",
        str(kubeconfig),
        m.build_path(first),
        str(write_count),
    ]

    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == -signal.SIGKILL, result.stderr
    assert m.has_begun(workload.read_maintenance(first)) is (write_count == 3)
    assert functions.post("begin", build_added_event(second)).status_code == 503
    assert functions.run_begin(first).get_type() == events.MAINTENANCE_BEGUN
    expire_quorum_lease(admin_client)
    reply = functions.invoke("begin", build_added_event(second))
    assert reply is not None
    assert str(require_data(reply)["error"]).startswith(REFUSAL_PREFIX)


def ensure_install_lease(admin_client: SyncClient) -> None:
    """Create the install Lease if it is missing, because otherwise the first write of `begin` would create it."""
    if admin_client.run(get_or_none(admin_client.api.get(install_lease.LEASE_PATH))) is None:
        account = install_lease.ServiceAccount(access.NAMESPACE, "begin")
        admin_client.create(LEASES_PATH, install_lease.build_lease(account, datetime.now(timezone.utc)))


def expire_quorum_lease(admin_client: SyncClient) -> None:
    """Set the quorum lease's renew time into the past, if the lease exists."""
    if admin_client.run(get_or_none(admin_client.api.get(quorum.LEASE_PATH))):
        admin_client.patch(quorum.LEASE_PATH, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
