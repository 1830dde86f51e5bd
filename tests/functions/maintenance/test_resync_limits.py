"""Tests for `resync` with hundreds of maintenances, with a malformed maintenance, and with too short a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest

from eventing import events
from functions.installs import INSTALL_LEASE_CACHE
from functions.maintenance.resync import MAX_READS_PER_TICK, resync
from kube.client.api import Api
from kube.client.api_errors import Unavailable
from kube.client.deadline import get_seconds_left, set_deadline
from kube.client.sync_client import SyncClient
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from kube.nodes import MAINTENANCE_LABEL
from kube.paths import PODS_PATH, Object
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_product_event, build_tick
from tests.functions.request_hooks import count_requests
from tests.kube.samples import DRAIN_TAINTS, make_node
from tests.proofs import proves
from tests.workload import Workload, build_pod

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_wait_for_events_in_flight")]

CORDONED_CONDITION = {
    "type": "Cordoned",
    "status": "True",
    "reason": "Cordoned",
    "message": "the node takes no new pods",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
SUCCEEDED_STATUS = {"phase": m.SUCCEEDED, "lastUpdate": "2026-01-01T00:00:00Z", "conditions": [CORDONED_CONDITION]}


@pytest.fixture
def create_succeeded_maintenances(workload: Workload) -> Iterator[Callable[[int], list[str]]]:
    """Yield a function that creates the given number of succeeded maintenances with nodes and leases.

    The nodes and leases are deleted after the test.
    """
    names: list[str] = []

    def create_maintenances(count: int) -> list[str]:
        added = [f"succeeded-{number}" for number in range(len(names), len(names) + count)]
        names.extend(added)
        for chunk in _split_names_into_chunks(added):
            workload.client.gather_all(*(_create_succeeded_maintenance(workload.client.api, name) for name in chunk))
        return added

    yield create_maintenances
    paths = [path for name in names for path in (f"/api/v1/nodes/{name}", leases.build_lease_path(name))]
    for chunk in _split_names_into_chunks(paths):
        workload.client.gather_all(*(workload.client.api.request("DELETE", path) for path in chunk))


def _split_names_into_chunks(names: list[str], size: int = 50) -> list[list[str]]:
    """Split the names into chunks, since a busy server cannot answer hundreds of requests within one deadline."""
    return [names[start : start + size] for start in range(0, len(names), size)]


async def _create_succeeded_maintenance(api: Api, name: str) -> None:
    """Create a node under maintenance, its lease, and its maintenance, which succeeded long ago."""
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "spec": {"nodeName": name}}
    maintenance = await api.create(MEDIK8S.path, {**body, "metadata": {"name": name}})
    metadata = {"name": name, "labels": {MAINTENANCE_LABEL: maintenance["metadata"]["uid"]}}
    spec = make_node(*DRAIN_TAINTS, cordoned=True)["spec"]
    node = await api.create("/api/v1/nodes", {"metadata": metadata, "spec": spec})
    maintenance = {**maintenance, "apiVersion": MEDIK8S.api_version}
    await api.patch(
        m.build_path(maintenance), m.build_begin_patch(maintenance, node, {"totalpods": 1, "evictionPods": 1})
    )
    await api.patch(f"{m.build_path(maintenance)}/status", {"status": SUCCEEDED_STATUS})
    await api.create(leases.LEASES_PATH, leases.build_lease(name, maintenance, datetime.now(timezone.utc)))


def test_request_count_is_independent_of_succeeded_maintenances(
    functions: Functions, create_succeeded_maintenances: Callable[[int], list[str]]
) -> None:
    """Design rule 10: a tick sends as many requests for 300 succeeded maintenances as for 50, and emits nothing.

    A tick sends five list requests, and lists the pods of a limited number of nodes.
    """
    api = functions.clusters["resync"].api
    request_counts = []
    # Let `resync` cache the identity of its ServiceAccount.
    INSTALL_LEASE_CACHE.get_account(functions.clusters["resync"])
    for count in (50, 250):
        create_succeeded_maintenances(count)
        INSTALL_LEASE_CACHE.confirm(functions.clusters["resync"])  # Let `resync` cache that this install is active.
        with count_requests(api) as requests:
            assert functions.invoke("resync", build_tick()) is None
        request_counts.append(requests)

    assert request_counts[0] == request_counts[1]
    assert request_counts[1].pop(f"GET {PODS_PATH}") == MAX_READS_PER_TICK
    assert request_counts[1].total() == 5


@proves("X-3")
def test_new_pod_on_drained_node_is_found_by_rotation(
    functions: Functions, create_succeeded_maintenances: Callable[[int], list[str]], workload: Workload
) -> None:
    """X-3: three ticks are enough to find a new pod on one of 50 nodes whose maintenances have succeeded."""
    names = create_succeeded_maintenances(50)
    pod = build_pod(names[33], "late")
    workload.client.create(f"/api/v1/namespaces/{workload.namespace}/pods", pod)

    replies = [functions.invoke("resync", build_tick()) for _ in range(3)]
    workload.delete(f"/api/v1/namespaces/{workload.namespace}/pods/late?gracePeriodSeconds=0")

    emitted = [(reply.get_type(), reply.get_extension("node")) for reply in replies if reply]
    # One or two of the three ticks list the pods of the new pod's node.
    assert set(emitted) == {(events.NODE_TAINTED, names[33])}


@pytest.mark.parametrize(
    "status",
    [
        {"lastUpdate": "2026-01-01T00:00:00.5Z"},
        {"phase": "Running", "blockedPods": [{"namespace": "a", "name": "b", "reason": "c"}]},
    ],
    ids=["foreign time format", "blocked pod without retryAfter"],
)
def test_malformed_status_does_not_stop_tick(functions: Functions, workload: Workload, status: Object) -> None:
    """X-3: a status with unexpected values does not stop the tick for other maintenances."""
    malformed, valid = (
        workload.create_maintenance(workload.take_node()),
        workload.create_maintenance(workload.take_node()),
    )
    functions.run_until_tainted(malformed)
    functions.run_until_tainted(valid)
    workload.create_bare_pods(valid["spec"]["nodeName"], "pod")
    workload.client.patch(
        f"{m.build_path(malformed)}/status", {"status": {**SUCCEEDED_STATUS, **status, "phase": m.SUCCEEDED}}
    )

    reply = functions.invoke("resync", build_tick())

    assert reply is not None
    assert (reply.get_type(), reply.get_extension("maintenance")) == (events.NODE_TAINTED, valid["metadata"]["uid"])


@proves("X-6")
def test_forbidden_list_requests_do_not_stop_tick(
    functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """X-6: without permission to list nodes and leases, a tick still emits events for new maintenances."""
    begun_maintenance, new_maintenance = (
        workload.create_maintenance(workload.take_node()),
        workload.create_maintenance(workload.take_node()),
    )
    functions.run_until_tainted(begun_maintenance)
    INSTALL_LEASE_CACHE.confirm(functions.clusters["guard"])  # Let `resync` cache that this install is active.

    (event,) = resync(build_tick(), functions.clusters["guard"])

    assert (event.get_type(), event.get_extension("maintenance")) == (
        events.MAINTENANCE_PENDING,
        new_maintenance["metadata"]["uid"],
    )
    assert 'cannot list resource "leases"' in caplog.text
    assert [record.fields for record in caplog.records if hasattr(record, "fields")][-1] == {"left": 1}


def test_resync_without_pod_list_emits_events_that_require_none(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Design rule 10: if `resync` cannot list pods before its deadline, it emits the events that require no pod list.

    At the next tick, `resync` emits the other events.
    """
    cluster = functions.clusters["resync"]
    new_maintenance, draining = (
        workload.create_maintenance(workload.take_node()),
        workload.create_maintenance(workload.take_node()),
    )
    functions.run_until_tainted(draining)
    functions.invoke("status", build_product_event(events.MAINTENANCE_BEGUN, draining))
    workload.create_bare_pods(draining["spec"]["nodeName"], "pod")

    with delay_pod_lists(cluster, monkeypatch), set_deadline(1.0):
        (event,) = resync(build_tick(), cluster)

    assert (event.get_type(), event.get_extension("maintenance")) == (
        events.MAINTENANCE_PENDING,
        new_maintenance["metadata"]["uid"],
    )
    assert [record.fields for record in caplog.records if hasattr(record, "fields")][-1] == {"left": 1}
    assert {emitted_event.get_type() for emitted_event in resync(build_tick(), cluster)} == {
        events.MAINTENANCE_PENDING,
        events.NODE_TAINTED,
    }


@contextmanager
def delay_pod_lists(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Delay list requests of this client for pods until the caller's deadline has passed."""
    send_request = client.api.request

    async def request(method: str, path: str, **options: Any) -> Object:
        if path == PODS_PATH:
            await asyncio.sleep(get_seconds_left())
        return await send_request(method, path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(client.api, "request", request)
        yield


def test_resync_without_time_for_any_list_raises_unavailable(functions: Functions) -> None:
    """X-6: if the deadline passes before any list request, `resync` raises `Unavailable`."""
    with set_deadline(0.0), pytest.raises(Unavailable):
        resync(build_tick(), functions.clusters["resync"])
