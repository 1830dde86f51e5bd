"""Tests for the RabbitMQ Broker: latency, crashes of its processes, and dead letters."""

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
from eventing.http_binding import encode_binary
from eventing.journal.store import Journal, Query
from eventing.replay.function_client import post_event
from localcluster.access import NAMESPACE
from localcluster.processes import reserve_port
from localcluster.rabbitmq.planes import RabbitPlanes
from localcluster.rabbitmq.product import RabbitProduct
from tests.e2e.environment import MAX_RECOVERY_SECONDS, E2eEnvironment
from tests.machine_speed import is_below_scaled_limit

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("environment", ["rabbitmq"], indirect=True)]
PROBE_COUNT = 200


def test_delivery_latency_is_within_limit(environment: E2eEnvironment) -> None:
    """Check that the median time from sending an event to the ingress until it is recorded is at most 10 ms."""
    sent_at: dict[str, float] = {}
    with requests.Session() as session:
        for _ in range(PROBE_COUNT):
            message = encode_binary(probe_event := _build_event("test.probe", {}))
            sent_at[probe_event.get_id()] = time.time()
            response = session.post(environment.product.broker_url, message.body, headers=message.headers, timeout=5)
            assert response.status_code == 202
            time.sleep(0.01)
    recorded = _wait_until_recorded(environment, set(sent_at))

    latencies_ms = sorted((recorded[event_id] - sent_at[event_id]) * 1000 for event_id in sent_at)
    percentile_95_ms = latencies_ms[len(latencies_ms) * 95 // 100]
    print(
        f"delivery latency of {len(latencies_ms)} events: median {statistics.median(latencies_ms):.1f} ms, "
        f"95th percentile {percentile_95_ms:.1f} ms"
    )
    assert is_below_scaled_limit(statistics.median(latencies_ms), 10)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(("rabbitmq",), id="rabbitmq"),
        pytest.param(("ingress",), id="ingress"),
        pytest.param(("dispatchers",), id="dispatchers"),
        pytest.param(RabbitPlanes.parts, id="all"),
    ],
)
def test_killed_broker_processes_only_delay_drains(environment: E2eEnvironment, parts: tuple[str, ...]) -> None:
    """X-2, X-3: killing processes of the Broker during drains only delays the drains."""
    drains = environment.prepare_drains("5s", nodes=environment.fault_nodes)
    drains.create_maintenances()
    drains.wait_for_terminating_pods(len(drains.pods) // 2)

    environment.product.kill_data_plane(*parts)
    killed_at = time.monotonic()
    environment.product.start_data_plane(*parts)
    restarted_at = time.monotonic()
    drains.wait_until_succeeded()
    seconds = time.monotonic() - restarted_at

    downtime_seconds = restarted_at - killed_at
    print(f"{', '.join(parts)}: down for {downtime_seconds:.1f} s, all Succeeded {seconds:.1f} s after the restart")
    drains.assert_each_pod_evicted_once()
    drains.end_maintenances()
    assert is_below_scaled_limit(seconds, MAX_RECOVERY_SECONDS)


@pytest.mark.parametrize("data", [{"maintenance": "poison"}, "poison"], ids=["unexpected fields", "not an object"])
def test_rejected_event_is_recorded_as_dead_letter(environment: E2eEnvironment, data: object) -> None:
    """X-6: an event that `cordon` rejects with 400 is recorded as a dead letter, and later events are delivered.

    The RabbitMQ Broker's dispatcher treats a status that it does not retry as a success, and creates no dead letter
    (`getStatus` in its `pkg/dispatcher`). `cordon` therefore publishes the dead letter itself.
    """
    invalid_event = _build_event(events.MAINTENANCE_BEGUN, data)
    assert post_event(invalid_event, environment.product.broker_url).status_code == 202

    recorded = _wait_for_recorded_event(
        environment, invalid_event.get_id(), lambda event: bool(event.get_extension("knativeerrordest"))
    )

    assert recorded.get_data() == data
    assert recorded.get_extension("knativeerrordest") == environment.product.get_function_url("cordon")
    assert recorded.get_extension("knativeerrorcode") == "400"
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[:1])
    drains.create_maintenances()
    drains.wait_until_succeeded()
    drains.end_maintenances(20)


def test_undeliverable_event_is_recorded_as_dead_letter(environment: E2eEnvironment) -> None:
    """X-6: an undeliverable event reaches `record` through RabbitMQ's dead letter exchange, and is recorded."""
    assert isinstance(environment.product, RabbitProduct)
    unreachable_url = f"http://127.0.0.1:{reserve_port()}/"
    environment.product.add_trigger(
        _build_trigger(
            "undeliverable", "test.undeliverable", unreachable_url, environment.product.get_function_url("record")
        )
    )
    undeliverable_event = _build_event("test.undeliverable", {"some": "data"})
    assert post_event(undeliverable_event, environment.product.broker_url).status_code == 202

    dead_letter = _wait_for_recorded_event(
        environment, undeliverable_event.get_id(), lambda event: bool(event.get_extension("knativeerrordest"))
    )

    assert dead_letter.get_extension("knativeerrordest") == unreachable_url
    assert dead_letter.get_data() == {"some": "data"}


def _build_trigger(name: str, event_type: str, subscriber: str, dead_letter_url: str) -> dict[str, Any]:
    delivery = {"retry": 1, "backoffPolicy": "linear", "backoffDelay": "PT0.1S"}
    return {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "broker": "default",
            "filter": {"attributes": {"type": event_type}},
            "subscriber": {"uri": subscriber},
            "delivery": {**delivery, "deadLetterSink": {"uri": dead_letter_url}},
        },
    }


def _build_event(event_type: str, data: object) -> CloudEvent:
    attributes = {
        "id": str(uuid.uuid4()),
        "source": "/tests/e2e",
        "type": event_type,
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, data)  # type: ignore[arg-type]


def _wait_until_recorded(environment: E2eEnvironment, ids: set[str], timeout: float = 30.0) -> dict[str, float]:
    """Wait until all events are recorded, and return a map from event id to wall clock time of arrival."""
    deadline = time.monotonic() + timeout
    while True:
        with closing(Journal(environment.product.journal)) as journal:
            arrivals = {
                entry.event.get_id(): entry.arrived.timestamp() for entry in journal.select(Query(ids=tuple(ids)))
            }
        if ids <= arrivals.keys():
            return arrivals
        assert time.monotonic() < deadline, f"{len(ids - arrivals.keys())} of {len(ids)} events were never recorded"
        time.sleep(0.05)


def _wait_for_recorded_event(
    environment: E2eEnvironment, event_id: str, predicate: Callable[[BaseCloudEvent], bool], timeout: float = 60.0
) -> BaseCloudEvent:
    """Wait until the recorded event satisfies `predicate`, and return this event."""
    deadline = time.monotonic() + timeout
    while True:
        with closing(Journal(environment.product.journal)) as journal:
            entries = [entry.event for entry in journal.select(Query(ids=(event_id,)))]
        latest = entries[-1] if entries else None
        if latest is not None and predicate(latest):
            return latest
        assert time.monotonic() < deadline, (
            f"event not as expected after {timeout:.0f} s; recorded: {latest and latest.get_attributes()}"
        )
        time.sleep(0.1)
