"""Tests that `begin` preserves etcd's quorum on control-plane nodes without a webhook (NMO-18, NMO-23)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest

from eventing import events
from functions.event_data import data_of
from functions.serving import handler
from kube import install_lease
from kube.client.api import absent_ok
from kube.client.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.groups import KUBEVIRT
from kube.maintenance.leases import LEASES
from kube.nodes import node_path
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.fault_proxy import RESET, SILENCE, Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, updated
from tests.functions.request_hooks import before
from tests.proofs import proves
from tests.sources import ROOT
from tests.workload import Audit, Workload, written

LOOK = (
    *("get leases", "create leases", "patch leases"),
    *("list nodes", "get poddisruptionbudgets", "list nodemaintenances"),
)
"""Additional requests of `begin` on a control-plane node; the quorum lease exists or not."""
FAULTS = {"500": Fault(500, "as the test wants it"), "503": Fault(503, "so, too"), "reset": RESET, "silence": SILENCE}
REFUSED = "can not put master/control-plane node into maintenance at this moment"


@pytest.fixture
def plane(work: Workload, admin: Cluster, alone: None) -> Iterator[list[str]]:
    """Yield the names of three control-plane nodes; after the test they are ordinary nodes again."""
    names = [work.node() for _ in range(3)]
    for name in names:
        admin.patch(node_path(name), {"metadata": {"labels": {quorum.CONTROL_PLANE[0]: ""}}})
    yield names
    for name in names:
        admin.patch(node_path(name), {"metadata": {"labels": {quorum.CONTROL_PLANE[0]: None}}})
    admin.run(absent_ok(admin.api.request("DELETE", quorum.LEASE_PATH)))


@pytest.fixture
def answers_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the deadline of a function's API requests."""
    monkeypatch.setattr(handler, "SECONDS_TO_ANSWER", 0.8)


@proves("NMO-18", "NMO-23")
def test_a_second_control_plane_node_does_not_begin(
    functions: Functions, work: Workload, plane: list[str], audit: Audit
) -> None:
    first, second = work.maintenance(plane[0]), work.maintenance(plane[1], KUBEVIRT)
    functions.begin(first)

    reply = functions.answer("begin", added(second))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_FAILED
    assert str(data_of(reply)["error"]).startswith(REFUSED)
    assert not m.finalizers(work.again(second))
    mine = [entry for entry in written(audit.writes_by()) if plane[1] in entry[2]]
    assert mine == []  # neither its lease nor its node is written


@proves("NMO-23")
def test_it_begins_when_the_first_one_is_over(
    functions: Functions, work: Workload, plane: list[str], admin: Cluster
) -> None:
    first, second = work.maintenance(plane[0]), work.maintenance(plane[1])
    functions.begin(first)
    functions.answer("begin", added(second))
    admin.patch(m.path(first), {"metadata": {"finalizers": None}})
    work.delete(m.path(first))

    assert functions.begin(second).get_type() == events.MAINTENANCE_BEGUN


@proves("NMO-23", "NMO-27a")
def test_it_begins_when_the_first_one_has_given_up_and_given_back_its_node(
    functions: Functions, work: Workload, plane: list[str], admin: Cluster
) -> None:
    """Nodes of a maintenance that lost its lease count as disrupted until `restore` has restored them."""
    first, second = work.maintenance(plane[0]), work.maintenance(plane[1])
    functions.prepare(first)
    admin.patch(f"{m.path(first)}/status", {"status": {"phase": m.FAILED, "errorOnLeaseCount": 4}})
    refused = functions.answer("begin", added(second))
    assert refused is not None
    assert str(data_of(refused)["error"]).startswith(REFUSED)

    functions.answer("restore", updated(work.again(first)))

    assert functions.begin(second).get_type() == events.MAINTENANCE_BEGUN
    assert m.has_begun(work.again(first))


@proves("NMO-23")
def test_one_made_of_anothers_file_has_not_begun(functions: Functions, work: Workload, plane: list[str]) -> None:
    """Check that `begin` treats a maintenance with copied finalizer, counts and owner as a new one."""
    work.pods(plane[0], "counted")
    first = work.maintenance(plane[0])
    functions.begin(first)
    metadata = work.again(first)["metadata"]
    kept = {name: metadata[name] for name in ("finalizers", "annotations", "ownerReferences")}
    copied = work.maintenance(plane[1], **kept)

    reply = functions.answer("begin", added(copied))

    assert reply is not None
    assert str(data_of(reply)["error"]).startswith(REFUSED)
    elsewhere = work.maintenance(work.node(), **kept)
    assert data_of(functions.begin(elsewhere))["totalpods"] == 0
    assert m.has_begun(work.again(elsewhere))


@proves("NMO-23")
def test_of_many_at_once_one_begins(functions: Functions, work: Workload, plane: list[str]) -> None:
    """Concurrent calls of `begin` start one maintenance; the others wait for the quorum lease and then fail."""
    items = [work.maintenance(name) for name in plane]

    def begun(item: m.Maintenance) -> str:
        while True:
            response = functions.post("begin", added(dict(item)))
            if response.status_code != 503:
                return str(response.headers["ce-type"])

    with ThreadPoolExecutor(3) as pool:
        answers = sorted(pool.map(begun, items))

    assert answers == [events.MAINTENANCE_BEGUN, events.MAINTENANCE_FAILED, events.MAINTENANCE_FAILED]
    assert sum(m.has_begun(work.again(item)) for item in items) == 1


def test_while_another_one_begins_it_waits(
    functions: Functions, work: Workload, plane: list[str], admin: Cluster
) -> None:
    """Check that `begin` answers 503 while another maintenance holds the quorum lease, until that lease expires."""
    other = work.maintenance(plane[0])
    admin.create(LEASES, quorum.lease_for(other, datetime.now(timezone.utc)))
    item = work.maintenance(plane[1])

    waits = functions.post("begin", added(item))
    assert (waits.status_code, "control-plane node" in waits.text) == (503, True)

    admin.patch(quorum.LEASE_PATH, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    functions.begin(item)
    assert admin.get(quorum.LEASE_PATH)["spec"].get("holderIdentity") is None


@proves("NMO-23")
def test_a_lease_that_is_taken_meanwhile_is_not_taken_over(
    functions: Functions, work: Workload, plane: list[str], admin: Cluster
) -> None:
    """Check that `begin` answers 503 if another maintenance takes over the expired quorum lease first."""
    expired_one = quorum.lease_for(work.maintenance(plane[0]), datetime.now(timezone.utc))
    admin.create(LEASES, expired_one)
    expired(admin)
    faster = quorum.lease_for(work.maintenance(plane[1]), datetime.now(timezone.utc))["spec"]
    item = work.maintenance(plane[2])

    with before(
        functions.clusters["begin"],
        "PATCH",
        quorum.LEASE_PATH,
        lambda: admin.patch(quorum.LEASE_PATH, {"spec": faster}),
    ):
        assert functions.post("begin", added(item)).status_code == 503

    assert admin.get(quorum.LEASE_PATH)["spec"]["holderIdentity"] == faster["holderIdentity"]
    assert not m.has_begun(work.again(item))


@proves("NMO-23")
def test_a_lease_that_was_over_is_the_next_ones_until_it_releases_it(
    functions: Functions, work: Workload, plane: list[str], admin: Cluster
) -> None:
    """Check that `begin` holds the quorum lease while it patches the maintenance, and releases it afterwards."""
    admin.create(LEASES, quorum.lease_for(work.maintenance(plane[0]), datetime.now(timezone.utc)))
    expired(admin)
    item = work.maintenance(plane[1])
    holders: list[str] = []

    def act() -> None:
        holders.append(admin.get(quorum.LEASE_PATH)["spec"]["holderIdentity"])

    with before(functions.clusters["begin"], "PATCH", m.path(item), act):
        functions.begin(item)

    assert holders == [quorum.lease_for(item, datetime.now(timezone.utc))["spec"]["holderIdentity"]]
    assert admin.get(quorum.LEASE_PATH)["spec"].get("holderIdentity") is None


@proves("NMO-23")
def test_whoever_is_late_releases_nobody_elses_lease(
    functions: Functions, work: Workload, plane: list[str], admin: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that `begin` does not release a quorum lease that another maintenance has taken over."""
    item = work.maintenance(plane[0])
    taken = quorum.lease_for(work.maintenance(plane[1]), datetime.now(timezone.utc))["spec"]

    with before(
        functions.clusters["begin"], "PATCH", quorum.LEASE_PATH, lambda: admin.patch(quorum.LEASE_PATH, {"spec": taken})
    ):
        functions.begin(item)

    assert admin.get(quorum.LEASE_PATH)["spec"]["holderIdentity"] == taken["holderIdentity"]
    (line,) = [record for record in caplog.records if record.name == "functions"]
    assert line.message.startswith(f"the lease {quorum.LEASE} was not released: ")
    assert "modified" in line.message


def test_one_that_has_begun_waits_for_nobody(
    functions: Functions, work: Workload, plane: list[str], admin: Cluster
) -> None:
    """Check that `begin` needs no quorum lease for a maintenance in progress."""
    item = work.maintenance(plane[0])
    functions.begin(item)
    taken = quorum.lease_for(work.maintenance(plane[1]), datetime.now(timezone.utc))
    admin.patch(quorum.LEASE_PATH, {"spec": taken["spec"]})

    assert functions.begin(item).get_type() == events.MAINTENANCE_BEGUN


@pytest.mark.slow
@proves("NMO-23")
@pytest.mark.usefixtures("answers_soon")
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("request_of_it", LOOK)
def test_a_look_that_is_spoiled_begins_nothing_that_would_break_the_quorum(
    functions: Functions,
    spoiled: Functions,
    faults: Faults,
    work: Workload,
    plane: list[str],
    admin: Cluster,
    request_of_it: str,
    kind: str,
) -> None:
    """Check that `begin` starts no second maintenance if a request of the quorum check fails."""
    first, second = work.maintenance(plane[0]), work.maintenance(plane[1], KUBEVIRT)
    functions.begin(first)
    if request_of_it == "create leases":
        admin.run(absent_ok(admin.api.request("DELETE", quorum.LEASE_PATH)))
    faults.spoil(lambda request: FAULTS[kind] if request.rpartition(" ")[0] == request_of_it else None)

    spoiled.post("begin", added(second))
    faults.speak_again()

    assert not m.has_begun(work.again(second))
    expired(admin)
    reply = functions.answer("begin", added(second))
    assert reply is not None
    assert str(data_of(reply)["error"]).startswith(REFUSED)


@pytest.mark.slow
@proves("NMO-23", "X-2")
@pytest.mark.parametrize("writes", [1, 2, 3])
def test_one_that_is_killed_between_two_writes_holds_nobody_up_for_long(
    functions: Functions, work: Workload, plane: list[str], admin: Cluster, quiet: LocalCluster, writes: int
) -> None:
    """Check that `begin`, killed between two writes, continues on redelivery, and that etcd keeps its quorum.

    Until the quorum lease expires, other maintenances wait.
    """
    claimed(admin)
    first, second = work.maintenance(plane[0]), work.maintenance(plane[1])
    kubeconfig = quiet.kubeconfig_for(access.service_account("begin"))
    command = [sys.executable, "-m", "tests.functions.maintenance.killed_begin", str(kubeconfig), m.path(first), str(writes)]

    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert m.has_begun(work.again(first)) is (writes == 3)
    assert functions.post("begin", added(second)).status_code == 503
    assert functions.begin(first).get_type() == events.MAINTENANCE_BEGUN
    expired(admin)
    reply = functions.answer("begin", added(second))
    assert reply is not None
    assert str(data_of(reply)["error"]).startswith(REFUSED)


def claimed(admin: Cluster) -> None:
    """Create the install Lease if it is missing; otherwise the process under test would write it first."""
    if admin.run(absent_ok(admin.api.get(install_lease.CLAIM_PATH))) is None:
        ours = install_lease.Account(access.NAMESPACE, "begin")
        admin.create(LEASES, install_lease.claim_of(ours, datetime.now(timezone.utc)))


def expired(admin: Cluster) -> None:
    """Make the quorum lease expire, if it exists."""
    if admin.run(absent_ok(admin.api.get(quorum.LEASE_PATH))):
        admin.patch(quorum.LEASE_PATH, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
