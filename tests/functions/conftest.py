"""Fixtures: a cluster, and all functions of the product with their own ServiceAccounts, without event delivery."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cloudevents.core.base import BaseCloudEvent
from werkzeug.test import TestResponse

from chaos.api_fault_proxy import FaultProxy
from eventing import events
from eventing.http_binding import INVALID_CHARACTERS, decode_event, encode_binary, encode_structured
from eventing.journal.entries import Attempt, parse_attempts
from functions.app import create_app
from functions.event_data import require_data
from functions.event_recorder import EVENT_RECORDER
from functions.maintenance import observation
from functions.record import get_journal
from kube.client.api import Api, get_or_none
from kube.client.sync_client import SyncClient
from kube.maintenance import leases
from kube.maintenance.groups import GROUPS
from kube.nodes import EXCLUDE_LABEL, EXCLUDED_BEFORE_LABEL, MAINTENANCE_LABEL, NODES_PATH, build_node_path
from kube.paths import Object
from localcluster import access, product
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from localcluster.components import crds, selection
from localcluster.http_receiver import Receiver
from localcluster.processes import wait_until_ready
from tests.functions.event_builders import build_added_event
from tests.workload import Workload

V = TypeVar("V")
MAX_CONCURRENT_REQUESTS = 50
"""Maximum number of concurrent requests; a busy server cannot answer hundreds before their timeout."""
APP_CREATION_LOCK = threading.RLock()
"""Lock around the creation of a Flask app, because some tests create apps in several threads.

Flask compiles routes through syntax trees, and CPython 3.11 supports only one such compilation at a time.
"""
TRANSIENT_ERRORS = (
    "acquired the install Lease at the same time",
    "no response from the API server in time",
    "no response from the API server: TimeoutError",
)
"""Messages of 503 responses after which a retry succeeds.

Two functions may compete for the install Lease of a new cluster, or the API server may be too slow on a busy machine.
"""
MAX_DELIVERIES = 5
"""Maximum number of deliveries of an event to a function that responds with a transient error."""


def is_transient_error(response: TestResponse) -> bool:
    """Return whether the response is a 503 for one of the reasons in `TRANSIENT_ERRORS`."""
    return response.status_code == 503 and any(reason in response.text for reason in TRANSIENT_ERRORS)


class LazyDict(dict[str, V]):
    """Mapping that creates each value on first access, since a test uses only one or two of about thirty functions."""

    def __init__(self, factory: Callable[[str], V]) -> None:
        self._factory = factory

    def __missing__(self, name: str) -> V:
        with APP_CREATION_LOCK:
            if name not in self:
                self[name] = self._factory(name)
            return self[name]


class Functions:
    """All functions, each called through a Flask test client and limited to its own ServiceAccount's rights."""

    def __init__(
        self, local_cluster: LocalCluster, rewrite_kubeconfig: Callable[[Path], Path] = lambda kubeconfig: kubeconfig
    ) -> None:
        def create_client(name: str) -> SyncClient:
            return SyncClient(str(rewrite_kubeconfig(local_cluster.ensure_kubeconfig(access.make_username(name)))))

        self.clusters = LazyDict(create_client)
        self.clients = LazyDict(lambda name: create_app(self.clusters[name]).test_client())

    def close(self) -> None:
        for cluster in self.clusters.values():
            cluster.close()

    def post(self, step: str, event: BaseCloudEvent, *, mode: str = "binary") -> TestResponse:
        """Post the event to one function, in binary or structured mode."""
        message = encode_binary(event) if mode == "binary" else encode_structured(event)
        # Threads may share the functions, but each thread needs its own test client.
        client = self.clients[step].application.test_client()
        return client.post(f"/{step}", data=message.body, headers=message.headers)

    def invoke(self, step: str, event: BaseCloudEvent) -> BaseCloudEvent | None:
        """Post the event and return the function's reply, or None for a 204; any other response fails the test.

        The method asserts that the reply's attributes name the function, the event, and the node, if any.
        """
        for _ in range(MAX_DELIVERIES):
            response = self.post(step, event)
            if not is_transient_error(response):
                break
        assert response.status_code in (200, 204), response.text
        if response.status_code == 204:
            return None
        reply = decode_event(dict(response.headers), response.data)
        assert (reply.get_source(), reply.get_extension("cause")) == (events.SOURCE_PREFIX + step, event.get_id())
        if reply.get_extension("maintenance"):
            node = require_data(reply)["node"]
            assert INVALID_CHARACTERS.search(node) or node == reply.get_extension("node") == reply.get_extension(
                "partitionkey"
            )
        if reply.get_type() == events.MAINTENANCE_STEP_FAILED:
            assert require_data(reply)["step"] == step
        return reply

    def run_chain(self, maintenance: Object, *steps: str) -> BaseCloudEvent:
        """Post the creation event to the first step and each reply to the next step; return the last reply."""
        event: BaseCloudEvent = build_added_event(maintenance)
        for step in steps:
            reply = self.invoke(step, event)
            assert reply is not None, f"{step} returned no reply to {event.get_type()}"
            event = reply
        return event

    def run_begin(self, maintenance: Object) -> BaseCloudEvent:
        """Run `begin` on the maintenance and return `maintenance.begun`."""
        return self.run_chain(maintenance, "begin")

    def run_until_tainted(self, maintenance: Object) -> BaseCloudEvent:
        """Run `begin`, `cordon` and `taint` for the maintenance and return `node.tainted`."""
        return self.run_chain(maintenance, "begin", "cordon", "taint")


@contextmanager
def run_idle_cluster(data_dir: Path) -> Iterator[LocalCluster]:
    """Yield a cluster with all CRDs and ServiceAccounts, on which no function runs unless a test calls it."""
    with LocalCluster(data_dir, nodes=1) as running:
        crds.install_crds(running, tuple(selection.CRD_PROJECTS))
        product.install_manifests(running, with_v1alpha1=True, components=(selection.MUTEX,))
        # Until the API server has a watch cache for a new CRD, it answers 503 to requests with `resourceVersion=0`.
        cached_paths = [f"{group.path}?resourceVersion=0" for group in GROUPS.values()]
        wait_until_ready(
            "the watch caches of the CRDs",
            lambda: all(running.is_served(path) for path in cached_paths),
            running.servers,
        )
        yield running


@pytest.fixture(scope="package")
def idle_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster for this test package, on which no function runs unless a test calls it."""
    with run_idle_cluster(tmp_path_factory.mktemp("quiet")) as running:
        yield running


@pytest.fixture(scope="package")
def admin_client(idle_cluster: LocalCluster) -> Iterator[SyncClient]:
    """Yield the administrator's API client for the idle cluster."""
    client = SyncClient(str(idle_cluster.kubeconfig))
    yield client
    client.close()


@pytest.fixture(scope="package")
def functions(idle_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Functions]:
    """Yield all functions, which record their events in a new journal."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JOURNAL", str(tmp_path_factory.mktemp("journal") / "journal.db"))
        for name in ("FUNCTION", "K_SINK"):
            environment.delenv(name, raising=False)
        get_journal.cache_clear()
        all_functions = Functions(idle_cluster)
        yield all_functions
        all_functions.close()
        get_journal().close()
        get_journal.cache_clear()


@contextmanager
def start_fault_proxy(idle_cluster: LocalCluster, kubeconfig_dir: Path) -> Iterator[tuple[FaultProxy, Functions]]:
    """Yield a proxy that injects faults into API requests, and all functions, which send their requests through it."""
    proxy = FaultProxy(idle_cluster.url, idle_cluster.certificate)

    def rewrite_kubeconfig(kubeconfig: Path) -> Path:
        return access.write_proxied_kubeconfig(
            proxy.url, kubeconfig, idle_cluster.url, kubeconfig_dir / kubeconfig.name
        )

    all_functions = Functions(idle_cluster, rewrite_kubeconfig)
    yield proxy, all_functions
    all_functions.close()
    proxy.close()


@pytest.fixture(scope="package")
def fault_setup(
    idle_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FaultProxy, Functions]]:
    """Yield a proxy that injects faults, and all functions, which send their API requests through the proxy."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("FUNCTION", "K_SINK"):
            environment.delenv(name, raising=False)
        with start_fault_proxy(idle_cluster, tmp_path_factory.mktemp("kubeconfigs")) as proxy_and_functions:
            yield proxy_and_functions


@pytest.fixture
def fault_proxy(fault_setup: tuple[FaultProxy, Functions]) -> FaultProxy:
    """Return the proxy that injects faults between the functions of `proxied_functions` and the API server."""
    return fault_setup[0]


@pytest.fixture
def proxied_functions(fault_setup: tuple[FaultProxy, Functions]) -> Functions:
    """Return all functions, which send their requests to the API server through `fault_proxy`."""
    return fault_setup[1]


@pytest.fixture(autouse=True)
def empty_event_report_cache() -> None:
    """Clear the cache of recently recorded Events, so that this process records them again in the test."""
    EVENT_RECORDER.clear()


@pytest.fixture
def no_wait_for_events_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `resync` emit events immediately, even for a maintenance whose status has just been written."""
    monkeypatch.setattr(observation, "IN_FLIGHT_SECONDS", 0)


@pytest.fixture
def workload(idle_cluster: LocalCluster, admin_client: SyncClient) -> Iterator[Workload]:
    """Yield the test's `Workload`; delete all maintenances after the test, because a tick reads all of them."""
    new_workload = Workload(idle_cluster, admin_client)
    yield new_workload
    new_workload.delete_objects()
    delete_maintenances(admin_client)


@pytest.fixture
def attempts_receiver() -> Iterator[Receiver]:
    """Yield an HTTP server that receives the reports of delivery attempts instead of the function `record`."""
    with closing(Receiver()) as receiver:
        yield receiver


def parse_received_attempts(attempts_receiver: Receiver) -> list[Attempt]:
    """Return the received attempts in order of arrival."""
    return [
        attempt
        for request in attempts_receiver.requests
        for attempt in parse_attempts(decode_event(request.headers, request.body))
    ]


@pytest.fixture
def clean_cluster(admin_client: SyncClient) -> None:
    """Delete the maintenances of earlier tests, so that a tick emits events for this test's maintenances only."""
    delete_maintenances(admin_client)


def delete_maintenances(admin_client: SyncClient) -> None:
    """Delete all maintenances and leases, and remove the product's labels from all nodes."""
    collections = (*(group.path for group in GROUPS.values()), leases.LEASES_PATH)
    nodes, *lists = admin_client.gather_all(
        admin_client.api.list(NODES_PATH, label_selector=MAINTENANCE_LABEL),
        *(admin_client.api.list(collection) for collection in collections),
    )
    label_patch = {"metadata": {"labels": dict.fromkeys((MAINTENANCE_LABEL, EXCLUDED_BEFORE_LABEL, EXCLUDE_LABEL))}}
    calls: list[Coroutine[Any, Any, object]] = [
        admin_client.api.patch(build_node_path(node["metadata"]["name"]), label_patch) for node in nodes["items"]
    ]
    for collection, listed in zip(collections, lists, strict=True):
        calls += [
            _remove_finalizers_and_delete(admin_client.api, f"{collection}/{item['metadata']['name']}", item)
            for item in listed["items"]
        ]
    for start in range(0, len(calls), MAX_CONCURRENT_REQUESTS):
        admin_client.gather_all(*(get_or_none(call) for call in calls[start : start + MAX_CONCURRENT_REQUESTS]))


async def _remove_finalizers_and_delete(api: Api, path: str, resource: Object) -> None:
    if resource["metadata"].get("finalizers"):
        await api.patch(path, {"metadata": {"finalizers": None}})
    await api.request("DELETE", path)


@pytest.fixture
def audit(idle_cluster: LocalCluster, workload: Workload) -> AuditLog:
    """Return the audit log of the write requests that the API server receives during the test."""
    return AuditLog(idle_cluster.audit_log)
