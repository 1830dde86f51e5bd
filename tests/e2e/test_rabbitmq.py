"""Tests of the RabbitMQ Broker: latency, crashes of its parts, and dead letters."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import requests
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.journal.store import Journal, Query
from eventing.replay.function_client import post
from eventing.http_binding import binary
from localcluster.access import NAMESPACE
from localcluster.processes import free_port
from localcluster.rabbitmq.planes import Planes
from localcluster.rabbitmq.product import RabbitProduct
from tests.e2e.environment import REPAIRED, Stage
from tests.machine_speed import is_below

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("stage", ["rabbitmq"], indirect=True)]
PROBES = 200


def test_a_hop_takes_a_few_milliseconds(stage: Stage) -> None:
    """Events are recorded within a median of 10 ms after they were sent to the ingress."""
    sent: dict[str, float] = {}
    with requests.Session() as session:
        for _ in range(PROBES):
            message = binary(probe := _event("test.probe", {}))
            sent[probe.get_id()] = time.time()
            answer = session.post(stage.product.broker_url, message.body, headers=message.headers, timeout=5)
            assert answer.status_code == 202
            time.sleep(0.01)
    recorded = _await_recorded(stage, set(sent))

    hops = sorted((recorded[probe] - sent[probe]) * 1000 for probe in sent)
    late = hops[len(hops) * 95 // 100]
    print(f"hop over {len(hops)} events: median {statistics.median(hops):.1f} ms, 95th percentile {late:.1f} ms")
    assert is_below(statistics.median(hops), 10)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(("rabbitmq",), id="rabbitmq"),
        pytest.param(("ingress",), id="ingress"),
        pytest.param(("dispatchers",), id="dispatchers"),
        pytest.param(Planes.parts, id="all"),
    ],
)
def test_the_data_plane_is_killed(stage: Stage, parts: tuple[str, ...]) -> None:
    """X-2, X-3: killing parts of the broker during drains only delays them."""
    drains = stage.drains("5s", nodes=stage.fewer)
    drains.begin()
    drains.await_going(len(drains.pods) // 2)

    stage.product.kill_data(*parts)
    killed = time.monotonic()
    stage.product.start_data(*parts)
    repaired = time.monotonic()
    drains.await_succeeded()
    took = time.monotonic() - repaired

    print(f"{', '.join(parts)}: down for {repaired - killed:.1f} s, all Succeeded {took:.1f} s after the repair")
    drains.check()
    drains.end()
    assert is_below(took, REPAIRED)


@pytest.mark.parametrize("data", [{"maintenance": "poison"}, "poison"], ids=["another shape", "no JSON"])
def test_what_functions_refuse_is_recorded_as_that(stage: Stage, data: object) -> None:
    """X-6: an event that `cordon` rejects with 400 is recorded as a dead letter, and later events are delivered.

    This broker's dispatcher treats a status that it would not retry like a success (`getStatus` in its
    `pkg/dispatcher`). It would create no dead letter, so the function publishes the dead letter itself.
    """
    poison = _event(events.MAINTENANCE_BEGUN, data)
    assert post(poison, stage.product.broker_url).status_code == 202

    kept = _await_kept(stage, poison.get_id(), lambda event: bool(event.get_extension("knativeerrordest")))

    assert kept.get_data() == data
    assert kept.get_extension("knativeerrordest") == stage.product.function_url("cordon")
    assert kept.get_extension("knativeerrorcode") == "400"
    drains = stage.drains("300ms", nodes=stage.nodes[:1])
    drains.begin()
    drains.await_succeeded()
    drains.end(20)


def test_what_cannot_be_delivered_is_recorded_as_that(stage: Stage) -> None:
    """X-6: an event that no subscriber accepts reaches `record` through the dead letter exchange, and is recorded."""
    assert isinstance(stage.product, RabbitProduct)
    nobody = f"http://127.0.0.1:{free_port()}/"
    stage.product.add_trigger(_trigger("nobody", "test.undeliverable", nobody, stage.product.function_url("record")))
    lost = _event("test.undeliverable", {"some": "data"})
    assert post(lost, stage.product.broker_url).status_code == 202

    dead = _await_kept(stage, lost.get_id(), lambda event: bool(event.get_extension("knativeerrordest")))

    assert dead.get_extension("knativeerrordest") == nobody
    assert dead.get_data() == {"some": "data"}


def _trigger(name: str, kind: str, subscriber: str, dead_letters: str) -> dict[str, Any]:
    delivery = {"retry": 1, "backoffPolicy": "linear", "backoffDelay": "PT0.1S"}
    return {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "broker": "default",
            "filter": {"attributes": {"type": kind}},
            "subscriber": {"uri": subscriber},
            "delivery": {**delivery, "deadLetterSink": {"uri": dead_letters}},
        },
    }


def _event(kind: str, data: object) -> CloudEvent:
    attributes = {"id": str(uuid.uuid4()), "source": "/tests/e2e", "type": kind, "datacontenttype": "application/json"}
    return CloudEvent(attributes, data)  # type: ignore[arg-type]


def _await_recorded(stage: Stage, ids: set[str], seconds: float = 30.0) -> dict[str, float]:
    """Return event id → the wall clock time at which the event was recorded, once all are recorded."""
    deadline = time.monotonic() + seconds
    while True:
        with closing(Journal(stage.product.journal)) as book:
            found = {entry.event.get_id(): entry.arrived.timestamp() for entry in book.select(Query(ids=tuple(ids)))}
        if ids <= found.keys():
            return found
        assert time.monotonic() < deadline, f"{len(ids - found.keys())} of {len(ids)} events were never recorded"
        time.sleep(0.05)


def _await_kept(
    stage: Stage, key: str, wanted: Callable[[BaseCloudEvent], bool], seconds: float = 60.0
) -> BaseCloudEvent:
    """Return the recorded event once `wanted` is true for it."""
    deadline = time.monotonic() + seconds
    while True:
        with closing(Journal(stage.product.journal)) as book:
            kept = [entry.event for entry in book.select(Query(ids=(key,)))]
        found = kept[-1] if kept else None
        if found is not None and wanted(found):
            return found
        assert time.monotonic() < deadline, f"not after {seconds:.0f} s; recorded: {found and found.get_attributes()}"
        time.sleep(0.1)
