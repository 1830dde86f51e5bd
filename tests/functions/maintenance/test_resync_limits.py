"""Tests of `resync` with many maintenances, with malformed ones, and with too little time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest

from eventing import events
from functions.installs import CLAIMS
from functions.maintenance.resync import LOOKS, resync
from kube.client.api import Api
from kube.client.api_errors import Unavailable
from kube.client.deadline import seconds_left, within
from kube.client.sync_client import Cluster
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from kube.nodes import LABEL
from kube.paths import PODS, Object
from tests.functions.conftest import Functions
from tests.functions.event_builders import said, tick
from tests.functions.request_hooks import requests_of
from tests.kube.samples import TAINTED, node
from tests.proofs import proves
from tests.workload import Workload, pod_on

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("at_rest")]

CLOSED = {
    "type": "Cordoned",
    "status": "True",
    "reason": "Cordoned",
    "message": "the node takes no new pods",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
DRAINED = {"phase": m.SUCCEEDED, "lastUpdate": "2026-01-01T00:00:00Z", "conditions": [CLOSED]}


@pytest.fixture
def rests(work: Workload) -> Iterator[Any]:
    """Yield a function that creates the given number of succeeded maintenances with nodes and leases.

    The nodes and leases are deleted after the test.
    """
    names: list[str] = []

    def add(count: int) -> list[str]:
        added = [f"resting-{number}" for number in range(len(names), len(names) + count)]
        names.extend(added)
        for some in _parts(added):
            work.admin.together(*(_rest(work.admin.api, name) for name in some))
        return added

    yield add
    paths = [path for name in names for path in (f"/api/v1/nodes/{name}", leases.lease_path(name))]
    for some in _parts(paths):
        work.admin.together(*(work.admin.api.request("DELETE", path) for path in some))


def _parts(names: list[str], size: int = 50) -> list[list[str]]:
    """Split the names into chunks, since a busy server cannot answer hundreds of requests within one deadline."""
    return [names[start : start + size] for start in range(0, len(names), size)]


async def _rest(api: Api, name: str) -> None:
    """Create a node under maintenance, its lease, and its maintenance, which succeeded long ago."""
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "spec": {"nodeName": name}}
    item = await api.create(MEDIK8S.path, {**body, "metadata": {"name": name}})
    metadata = {"name": name, "labels": {LABEL: item["metadata"]["uid"]}}
    spec = node(*TAINTED, cordoned=True)["spec"]
    closed = await api.create("/api/v1/nodes", {"metadata": metadata, "spec": spec})
    item = {**item, "apiVersion": MEDIK8S.api_version}
    await api.patch(m.path(item), m.begin_patch(item, closed, {"totalpods": 1, "evictionPods": 1}))
    await api.patch(f"{m.path(item)}/status", {"status": DRAINED})
    await api.create(leases.LEASES, leases.lease_of(name, item, datetime.now(timezone.utc)))


def test_what_a_tick_costs_does_not_grow_with_what_rests(functions: Functions, rests: Any) -> None:
    """Rule 10: a tick sends as many requests for 300 succeeded maintenances as for 50, and emits nothing.

    These are five lists and the reads of pods.
    """
    api = functions.clusters["resync"].api
    costs = []
    CLAIMS.own(functions.clusters["resync"])  # caches this install's account
    for more in (50, 250):
        rests(more)
        CLAIMS.confirm(functions.clusters["resync"])  # caches that this install is active
        with requests_of(api) as counted:
            assert functions.answer("resync", tick()) is None
        costs.append(counted)

    assert costs[0] == costs[1]
    assert costs[1].pop(f"GET {PODS}") == LOOKS
    assert costs[1].total() == 5


@proves("X-3")
def test_everybodys_turn_comes(functions: Functions, rests: Any, work: Workload) -> None:
    """X-3: a late pod on one of 50 nodes with succeeded maintenances is found within three ticks."""
    names = rests(50)
    pod = pod_on(names[33], "late")
    work.admin.create(f"/api/v1/namespaces/{work.namespace}/pods", pod)

    replies = [functions.answer("resync", tick()) for _ in range(3)]
    work.delete(f"/api/v1/namespaces/{work.namespace}/pods/late?gracePeriodSeconds=0")

    found = [(reply.get_type(), reply.get_extension("node")) for reply in replies if reply]
    assert set(found) == {(events.NODE_TAINTED, names[33])}  # once or twice: three ticks read sixty nodes


@pytest.mark.parametrize(
    "status",
    [
        {"lastUpdate": "2026-01-01T00:00:00.5Z"},
        {"phase": "Running", "blockedPods": [{"namespace": "a", "name": "b", "reason": "c"}]},
    ],
    ids=["a time that is not ours", "a blocked pod without time"],
)
def test_a_spoiled_status_stops_no_other(functions: Functions, work: Workload, status: Object) -> None:
    """X-3: a status with unexpected values does not stop the tick for other maintenances."""
    spoiled, good = work.maintenance(work.node()), work.maintenance(work.node())
    functions.prepare(spoiled)
    functions.prepare(good)
    work.pods(good["spec"]["nodeName"], "pod")
    work.admin.patch(f"{m.path(spoiled)}/status", {"status": {**DRAINED, **status, "phase": m.SUCCEEDED}})

    reply = functions.answer("resync", tick())

    assert reply is not None
    assert (reply.get_type(), reply.get_extension("maintenance")) == (events.NODE_TAINTED, good["metadata"]["uid"])


@proves("X-6")
def test_a_list_that_is_refused_stops_no_other(
    functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """X-6: without the right to list nodes and leases, a tick emits events for new maintenances."""
    begun, new = work.maintenance(work.node()), work.maintenance(work.node())
    functions.prepare(begun)
    CLAIMS.confirm(functions.clusters["guard"])  # other installs are not under test

    (found,) = resync(tick(), functions.clusters["guard"])

    assert (found.get_type(), found.get_extension("maintenance")) == (events.MAINTENANCE_FOUND, new["metadata"]["uid"])
    assert 'cannot list resource "leases"' in caplog.text
    assert [record.fields for record in caplog.records if hasattr(record, "fields")][-1] == {"left": 1}


def test_a_tick_that_runs_out_of_time_emits_what_it_has(
    functions: Functions, work: Workload, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 10: a tick that cannot list pods in time emits the other events and leaves the rest to the next tick."""
    cluster = functions.clusters["resync"]
    new, draining = work.maintenance(work.node()), work.maintenance(work.node())
    functions.prepare(draining)
    functions.answer("status", said(events.MAINTENANCE_BEGUN, draining))
    work.pods(draining["spec"]["nodeName"], "pod")

    with slow_pods(cluster, monkeypatch), within(1.0):
        (found,) = resync(tick(), cluster)

    assert (found.get_type(), found.get_extension("maintenance")) == (events.MAINTENANCE_FOUND, new["metadata"]["uid"])
    assert [record.fields for record in caplog.records if hasattr(record, "fields")][-1] == {"left": 1}
    assert {item.get_type() for item in resync(tick(), cluster)} == {events.MAINTENANCE_FOUND, events.NODE_TAINTED}


@contextmanager
def slow_pods(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Delay this client's lists of pods until the caller's deadline."""
    real = cluster.api.request

    async def request(method: str, path: str, **more: Any) -> Object:
        if path == PODS:
            await asyncio.sleep(seconds_left())
        return await real(method, path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(cluster.api, "request", request)
        yield


def test_when_nothing_could_be_listed_the_tick_is_tried_again(functions: Functions) -> None:
    """X-6: a tick without time for any list raises `Unavailable`."""
    with within(0.0), pytest.raises(Unavailable):
        resync(tick(), functions.clusters["resync"])
