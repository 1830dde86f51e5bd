"""Tests of `K_SINK`: Knative's SinkBinding sets the broker's address for the functions that emit several events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from eventing import events
from eventing.journal.store import Journal, Query
from eventing.replay.function_client import post
from localcluster.access import NAMESPACE
from localcluster.functions import SERVED
from localcluster.knative.product import KnativeProduct
from localcluster.processes import await_ready, free_port
from localcluster.readiness import is_ready
from tests.e2e.environment import Stage
from tests.e2e.ticks import tick

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("stage", ["knative"], indirect=True),
    pytest.mark.usefixtures("whole_again"),
]
BOUND = {"guard", "resync"}
SECONDS = 20.0


def test_who_may_answer_with_several_events_is_given_the_brokers_address(stage: Stage) -> None:
    """SinkBinding gives the Broker's address to `guard` and `resync`, and to no other function."""
    asked = ("get", "deployments", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=function", "-o", "json")
    containers = {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]["containers"][0]
        for item in json.loads(stage.local.kubectl(*asked).stdout)["items"]
    }
    address = stage.local.kubectl("get", "broker/default", "-n", NAMESPACE, "-o", "jsonpath={.status.address.url}")

    sinks = {name: _variables(container).get("K_SINK") for name, container in containers.items()}
    assert sinks == {name: address.stdout if name in BOUND else None for name in SERVED}


def test_what_resync_sends_there_is_heard(stage: Stage, resync: str) -> None:
    """Events that `resync` posts to `K_SINK` arrive through the broker: one for each of two maintenances.

    `resync` runs with the environment of its Deployment.
    """
    drains = stage.drains("300ms", nodes=stage.nodes[:2])
    stage.histogram.note("begin")
    stage.product.kill_functions("begin")
    drains.begin()
    said = tick()

    assert post(said, resync).status_code == 204

    deadline = time.monotonic() + SECONDS
    while len(heard := _answers(stage, said.get_id())) < 2:
        assert time.monotonic() < deadline, f"only {heard} came from the broker"
        time.sleep(0.1)
    assert heard == {item["metadata"]["uid"] for item in drains.maintenances}
    stage.product.start_functions("begin")
    drains.await_succeeded()
    drains.end()


@pytest.fixture
def resync(stage: Stage) -> Iterator[str]:
    """Yield the URL of a `resync` process with exactly the environment of its Deployment."""
    assert isinstance(stage.product, KnativeProduct)
    port = free_port()
    server = stage.product.planes.kubelet.server(NAMESPACE, "resync", BIND=f"127.0.0.1:{port}")
    server.start()
    await_ready("resync", lambda: is_ready(f"http://127.0.0.1:{port}"), [server], SECONDS)
    yield f"http://127.0.0.1:{port}/resync"
    server.kill()


def _variables(container: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}


def _answers(stage: Stage, cause: str) -> set[str]:
    """Return the uids of the maintenances with a recorded event that was emitted in reply to `cause`."""
    with closing(Journal(stage.product.journal)) as book:
        kept = book.select(Query(types=(events.MAINTENANCE_FOUND,)))
    return {entry.maintenance for entry in kept if entry.cause == cause}
