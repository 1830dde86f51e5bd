"""Tests for `K_SINK`, the Broker's address, which the SinkBinding sets for functions that emit several events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from eventing import events
from eventing.journal.store import Journal, Query
from eventing.replay.function_client import post_event
from localcluster.access import NAMESPACE
from localcluster.functions import DEFAULT_FUNCTIONS
from localcluster.knative.product import KnativeProduct
from localcluster.processes import reserve_port, wait_until_ready
from localcluster.readiness import is_ready
from tests.e2e.environment import E2eEnvironment
from tests.e2e.ticks import build_tick

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("environment", ["knative"], indirect=True),
    pytest.mark.usefixtures("restore_product"),
]
BOUND_FUNCTIONS = {"guard", "resync"}
TIMEOUT_SECONDS = 20.0


def test_sinkbinding_sets_k_sink_of_guard_and_resync(environment: E2eEnvironment) -> None:
    """Check that the SinkBinding sets `K_SINK` in the functions `guard` and `resync`, and in no other function."""
    arguments = ("get", "deployments", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=function", "-o", "json")
    containers = {
        deployment["metadata"]["name"]: deployment["spec"]["template"]["spec"]["containers"][0]
        for deployment in json.loads(environment.cluster.kubectl(*arguments).stdout)["items"]
    }
    address = environment.cluster.kubectl(
        "get", "broker/default", "-n", NAMESPACE, "-o", "jsonpath={.status.address.url}"
    )

    sink_by_function = {name: _get_variables(container).get("K_SINK") for name, container in containers.items()}
    assert sink_by_function == {name: address.stdout if name in BOUND_FUNCTIONS else None for name in DEFAULT_FUNCTIONS}


def test_events_of_resync_arrive_through_broker(environment: E2eEnvironment, resync_url: str) -> None:
    """Check that the events that `resync` posts to `K_SINK` arrive through the Broker, one per maintenance.

    `resync` runs with the environment variables of its Deployment.
    """
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[:2])
    environment.histogram.record("begin")
    environment.product.kill_functions("begin")
    drains.create_maintenances()
    tick = build_tick()

    assert post_event(tick, resync_url).status_code == 204

    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(reply_uids := _find_replied_maintenances(environment, tick.get_id())) < 2:
        assert time.monotonic() < deadline, f"only the events about {reply_uids} arrived through the broker"
        time.sleep(0.1)
    assert reply_uids == {maintenance["metadata"]["uid"] for maintenance in drains.maintenances}
    environment.product.start_functions("begin")
    drains.wait_until_succeeded()
    drains.end_maintenances()


@pytest.fixture
def resync_url(environment: E2eEnvironment) -> Iterator[str]:
    """Yield the URL of a `resync` process with exactly the environment variables of its Deployment."""
    assert isinstance(environment.product, KnativeProduct)
    port = reserve_port()
    server = environment.product.planes.kubelet.build_server(NAMESPACE, "resync", BIND=f"127.0.0.1:{port}")
    server.start()
    wait_until_ready("resync", lambda: is_ready(f"http://127.0.0.1:{port}"), [server], TIMEOUT_SECONDS)
    yield f"http://127.0.0.1:{port}/resync"
    server.kill()


def _get_variables(container: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}


def _find_replied_maintenances(environment: E2eEnvironment, cause_id: str) -> set[str]:
    """Return the uids of the maintenances with a recorded event that the event `cause_id` has caused."""
    with closing(Journal(environment.product.journal)) as journal:
        entries = journal.select(Query(types=(events.MAINTENANCE_PENDING,)))
    return {entry.maintenance for entry in entries if entry.cause == cause_id}
