"""Fixtures: a cluster where no other part of the product runs, and the functions with their own ServiceAccounts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cloudevents.core.base import BaseCloudEvent
from werkzeug.test import TestResponse

from eventing import events
from eventing.journal.entries import Attempt, attempts_in
from eventing.http_binding import NO_TEXT, binary, received, structured
from functions.app import create_app
from functions.event_data import data_of
from functions.maintenance import due_events
from functions.record import journal
from kube.client.api import Api, absent_ok
from kube.client.sync_client import Cluster
from kube.maintenance import leases
from kube.maintenance.groups import GROUPS
from kube.nodes import BEFORE, EXCLUDED, LABEL, NODES, node_path
from kube.paths import Object
from localcluster import access, product
from localcluster.cluster import LocalCluster
from localcluster.hyperconverged import crds as hyperconverged
from localcluster.kubevirt import crds as kubevirt
from localcluster.openshift import crds
from localcluster.processes import await_ready
from localcluster.components import selection
from tests.fault_proxy import Faults
from tests.functions.event_builders import added
from tests.receiver import Receiver
from tests.workload import Audit, Workload

V = TypeVar("V")
AT_ONCE = 50
"""Maximum number of concurrent requests; a busy server cannot answer hundreds before their timeout."""
ONE_AT_A_TIME = threading.RLock()
"""Lock around the creation of an app, since tests run in threads.

Flask compiles routes through syntax trees, and CPython 3.11 supports only one such compilation at a time.
"""
PASSING = (
    "was just taking the claim",
    "no answer from the API server in time",
    "no answer from the API server: TimeoutError",
)
"""Messages of 503 responses that a retry resolves.

Two functions may compete for the install Lease of a new cluster, or the API server may be too slow on a busy machine.
"""
DELIVERIES = 5
"""Maximum number of times that such an event is delivered, as a broker would."""


def is_passing(response: TestResponse) -> bool:
    """Return whether the function responds with a 503 for one of the reasons in `PASSING`."""
    return response.status_code == 503 and any(reason in response.text for reason in PASSING)


class OnDemand(dict[str, V]):
    """Mapping that creates each value on first access; a test uses one or two of about thirty functions."""

    def __init__(self, make: Callable[[str], V]) -> None:
        self._make = make

    def __missing__(self, name: str) -> V:
        with ONE_AT_A_TIME:
            if name not in self:
                self[name] = self._make(name)
            return self[name]


class Functions:
    """All functions, each called through a Flask test client and limited to its own ServiceAccount's rights."""

    def __init__(self, local: LocalCluster, through: Callable[[Path], Path] = lambda kubeconfig: kubeconfig) -> None:
        def door(name: str) -> Cluster:
            return Cluster(str(through(local.kubeconfig_for(access.service_account(name)))))

        self.clusters = OnDemand(door)
        self.clients = OnDemand(lambda name: create_app(self.clusters[name]).test_client())

    def close(self) -> None:
        for cluster in self.clusters.values():
            cluster.close()

    def post(self, step: str, event: BaseCloudEvent, *, mode: str = "binary") -> TestResponse:
        """Post the event to one function, in binary or structured mode."""
        message = binary(event) if mode == "binary" else structured(event)
        client = self.clients[step].application.test_client()  # threads may share the functions, but not a test client
        return client.post(f"/{step}", data=message.body, headers=message.headers)

    def answer(self, step: str, event: BaseCloudEvent) -> BaseCloudEvent | None:
        """Post the event and return the function's reply, None for a 204; any other response fails the test.

        The method asserts that the reply names its source and its cause, and for a maintenance also its node.
        """
        for _ in range(DELIVERIES):
            response = self.post(step, event)
            if not is_passing(response):
                break
        assert response.status_code in (200, 204), response.text
        if response.status_code == 204:
            return None
        reply = received(dict(response.headers), response.data)
        assert (reply.get_source(), reply.get_extension("cause")) == (events.SOURCE + step, event.get_id())
        if reply.get_extension("maintenance"):
            node = data_of(reply)["node"]
            assert NO_TEXT.search(node) or node == reply.get_extension("node") == reply.get_extension("partitionkey")
        if reply.get_type() == events.MAINTENANCE_FAILED:
            assert data_of(reply)["step"] == step
        return reply

    def chain(self, maintenance: Object, *steps: str) -> BaseCloudEvent:
        """Post the added object to the first step and each reply to the next step; return the last reply."""
        event: BaseCloudEvent = added(maintenance)
        for step in steps:
            reply = self.answer(step, event)
            assert reply is not None, f"{step} answered nothing to {event.get_type()}"
            event = reply
        return event

    def begin(self, maintenance: Object) -> BaseCloudEvent:
        """Run `begin` on the maintenance and return `maintenance.begun`."""
        return self.chain(maintenance, "begin")

    def prepare(self, maintenance: Object) -> BaseCloudEvent:
        """Run `begin`, `cordon` and `taint` for the maintenance and return `node.tainted`."""
        return self.chain(maintenance, "begin", "cordon", "taint")


@contextmanager
def unattended(folder: Path) -> Iterator[LocalCluster]:
    """Yield a cluster with all CRDs and accounts, on which only the functions that a test calls run."""
    with LocalCluster(folder, nodes=1) as running:
        crds.install(running)
        kubevirt.install(running)
        hyperconverged.install(running)
        product.install(running, v1alpha1=True, opted=(selection.MUTEX,))
        # the API server has no watch cache of a new CRD at first, and answers 503 to `resourceVersion=0`
        cached = [f"{group.path}?resourceVersion=0" for group in GROUPS.values()]
        await_ready("the kinds' caches", lambda: all(running.serves(path) for path in cached), running.servers)
        yield running


@pytest.fixture(scope="package")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield the package's cluster, on which only the functions that a test calls run."""
    with unattended(tmp_path_factory.mktemp("quiet")) as running:
        yield running


@pytest.fixture(scope="package")
def admin(quiet: LocalCluster) -> Iterator[Cluster]:
    """Yield the administrator's API client for that cluster."""
    door = Cluster(str(quiet.kubeconfig))
    yield door
    door.close()


@pytest.fixture(scope="package")
def functions(quiet: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Functions]:
    """Yield all functions, with a journal of their own."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JOURNAL", str(tmp_path_factory.mktemp("journal") / "journal.db"))
        for name in ("FUNCTION", "K_SINK"):
            environment.delenv(name, raising=False)
        journal.cache_clear()
        all_functions = Functions(quiet)
        yield all_functions
        all_functions.close()
        journal().close()
        journal.cache_clear()


@contextmanager
def behind_faults(quiet: LocalCluster, folder: Path) -> Iterator[tuple[Faults, Functions]]:
    """Yield a proxy that injects faults into requests to the API server, and all functions, which use it."""
    proxy = Faults(quiet.url, quiet.certificate)

    def through(kubeconfig: Path) -> Path:
        return access.through(proxy.url, kubeconfig, quiet.url, folder / kubeconfig.name)

    all_functions = Functions(quiet, through)
    yield proxy, all_functions
    all_functions.close()
    proxy.close()


@pytest.fixture(scope="package")
def hindered(quiet: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Faults, Functions]]:
    """Yield the package's fault-injecting proxy and the functions that use it."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("FUNCTION", "K_SINK"):
            environment.delenv(name, raising=False)
        with behind_faults(quiet, tmp_path_factory.mktemp("kubeconfigs")) as both:
            yield both


@pytest.fixture
def faults(hindered: tuple[Faults, Functions]) -> Faults:
    """Return the proxy that injects faults between the functions of `spoiled` and the API server."""
    return hindered[0]


@pytest.fixture
def spoiled(hindered: tuple[Faults, Functions]) -> Functions:
    """Return all functions, which send their requests to the API server through `faults`."""
    return hindered[1]


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `resync` treat no maintenance as in flight, however recently it changed."""
    monkeypatch.setattr(due_events, "UNDER_WAY_SECONDS", 0)


@pytest.fixture
def work(quiet: LocalCluster, admin: Cluster) -> Iterator[Workload]:
    """Yield the test's `Workload`, and delete all maintenances afterwards, since a tick reads all of them."""
    one = Workload(quiet, admin)
    yield one
    one.end()
    forget(admin)


@pytest.fixture
def recorder() -> Iterator[Receiver]:
    """Yield an HTTP server that receives published attempts in place of `record`."""
    with closing(Receiver()) as taken:
        yield taken


def told(recorder: Receiver) -> list[Attempt]:
    """Return the received attempts in order of arrival."""
    return [one for request in recorder.requests for one in attempts_in(received(request.headers, request.body))]


@pytest.fixture
def alone(admin: Cluster) -> None:
    """Delete the maintenances of earlier tests, so that a tick emits events for this test's maintenances only."""
    forget(admin)


def forget(admin: Cluster) -> None:
    """Delete all maintenances and leases, and remove the product's labels from all nodes."""
    collections = (*(group.path for group in GROUPS.values()), leases.LEASES)
    nodes, *lists = admin.together(
        admin.api.list(NODES, labels=LABEL), *(admin.api.list(collection) for collection in collections)
    )
    unlabelled = {"metadata": {"labels": dict.fromkeys((LABEL, BEFORE, EXCLUDED))}}
    calls: list[Coroutine[Any, Any, object]] = [
        admin.api.patch(node_path(node["metadata"]["name"]), unlabelled) for node in nodes["items"]
    ]
    for collection, found in zip(collections, lists, strict=True):
        calls += [_removed(admin.api, f"{collection}/{item['metadata']['name']}", item) for item in found["items"]]
    for start in range(0, len(calls), AT_ONCE):
        admin.together(*(absent_ok(call) for call in calls[start : start + AT_ONCE]))


async def _removed(api: Api, path: str, item: Object) -> None:
    if item["metadata"].get("finalizers"):
        await api.patch(path, {"metadata": {"finalizers": None}})
    await api.request("DELETE", path)


@pytest.fixture
def audit(quiet: LocalCluster, work: Workload) -> Audit:
    """Return the audit of the write requests that the API server receives from now on."""
    return Audit(quiet.audit_log)
