"""`begin` on control-plane nodes, without a webhook: etcd keeps its quorum all the same (NMO-18, NMO-23)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest

from eventing import events
from functions.data import data_of
from kube.door.api import absent_ok
from kube.door.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.groups import KUBEVIRT
from kube.maintenance.leases import LEASES
from kube.nodes import node_path
from tests.functions.conftest import Functions
from tests.functions.hints import added
from tests.proofs import proves
from tests.workload import Audit, Workload, written

REFUSED = "can not put master/control-plane node into maintenance at this moment"


@pytest.fixture
def plane(work: Workload, admin: Cluster, alone: None) -> Iterator[list[str]]:
    """Three control-plane nodes; plain ones again after the test."""
    names = [work.node() for _ in range(3)]
    for name in names:
        admin.patch(node_path(name), {"metadata": {"labels": {quorum.CONTROL_PLANE[0]: ""}}})
    yield names
    for name in names:
        admin.patch(node_path(name), {"metadata": {"labels": {quorum.CONTROL_PLANE[0]: None}}})
    admin.run(absent_ok(admin.api.request("DELETE", quorum.LEASE_PATH)))


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
    assert mine == []  # neither lease nor node of it is touched


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


@proves("NMO-23")
def test_of_many_at_once_one_begins(functions: Functions, work: Workload, plane: list[str]) -> None:
    """Side by side all have passed the door; each looks under the lease, and those that found it taken come again."""
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
    """A lease of one that crashed is over after seconds; until then the broker tries again."""
    other = work.maintenance(plane[0])
    admin.create(LEASES, quorum.lease_for(other, datetime.now(timezone.utc)))
    item = work.maintenance(plane[1])

    assert functions.post("begin", added(item)).status_code == 503

    admin.patch(quorum.LEASE_PATH, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    functions.begin(item)
    assert admin.get(quorum.LEASE_PATH)["spec"].get("holderIdentity") is None


def test_one_that_has_begun_waits_for_nobody(
    functions: Functions, work: Workload, plane: list[str], admin: Cluster
) -> None:
    """What is under way is no new disruption, also while another one begins."""
    item = work.maintenance(plane[0])
    functions.begin(item)
    taken = quorum.lease_for(work.maintenance(plane[1]), datetime.now(timezone.utc))
    admin.patch(quorum.LEASE_PATH, {"spec": taken["spec"]})

    assert functions.begin(item).get_type() == events.MAINTENANCE_BEGUN
