"""Tests for the spans that an OTLP collector receives during a drain."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from eventing import events
from functions.serving.tracing import ENDPOINT_VARIABLES
from localcluster.http_receiver import ReceivedRequest, Receiver, Response
from tests.chain.environment import EventChainEnvironment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


class Collector:
    """An OTLP collector that stores the spans it receives over HTTP in protobuf format."""

    def __init__(self) -> None:
        self.services: set[str] = set()
        self._spans: list[Span] = []
        self._receiver = Receiver(default_answer=lambda _: Response(404))
        self._receiver.answers["/v1/traces"] = self._handle_request
        self.url, self.close = self._receiver.url, self._receiver.close

    def _handle_request(self, request: ReceivedRequest) -> Response:
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            resource_attributes = {
                attribute.key: attribute.value.string_value for attribute in resource.resource.attributes
            }
            self.services.add(resource_attributes["service.name"])
            self._spans += [span for scope in resource.scope_spans for span in scope.spans]
        return Response(200)

    def wait_for_spans(self, predicate: Callable[[list[Span]], bool]) -> list[Span]:
        """Wait until `predicate` returns true for the spans, and return them."""
        self._receiver.wait_until(lambda: predicate(list(self._spans)))
        return list(self._spans)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    otlp_collector = Collector()
    yield otlp_collector
    otlp_collector.close()


@pytest.fixture(scope="module")
def traced_environment(environment: EventChainEnvironment, collector: Collector) -> Iterator[EventChainEnvironment]:
    """Yield the environment while its functions send spans to the collector."""
    functions, original_variables = environment.product.functions, dict(environment.product.functions.env)
    # OTEL_BSP_SCHEDULE_DELAY is the delay between two batches of spans in milliseconds.
    functions.env |= {ENDPOINT_VARIABLES[0]: collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    functions.stop()
    environment.product.start_functions()
    yield environment
    functions.env = original_variables
    functions.stop()
    environment.product.start_functions()


def get_attributes(span: Span) -> dict[str, str | int]:
    return {attribute.key: attribute.value.string_value or attribute.value.int_value for attribute in span.attributes}


def get_event_type(span: Span) -> str:
    return str(get_attributes(span)["cloudevents.event_type"])


def test_drain_produces_one_trace(traced_environment: EventChainEnvironment, collector: Collector) -> None:
    """Check that a drain produces one complete trace whose trace id is the maintenance's uid."""
    node = traced_environment.create_node()
    traced_environment.create_pods(node, 3, delete="500ms")
    path = traced_environment.create_maintenance(node)
    traced_environment.wait_for_state(path)
    uid = traced_environment.client.get(path)["metadata"]["uid"]

    def select_spans_of_maintenance(spans: list[Span]) -> list[Span]:
        return [span for span in spans if span.trace_id.hex() == uuid.UUID(uid).hex]

    spans = select_spans_of_maintenance(
        collector.wait_for_spans(
            lambda spans: any(
                span.name == "status" and get_event_type(span) == events.NODE_DRAINED
                for span in select_spans_of_maintenance(spans)
            )
        )
    )
    spans_by_id = {span.span_id: span for span in spans}
    root_spans = [span for span in spans if not span.parent_span_id]
    span_and_parent_names = {
        (span.name, spans_by_id[span.parent_span_id].name) for span in spans if span.parent_span_id
    }

    # A second attempt for the same event creates a second root span.
    assert {(span.name, get_event_type(span)) for span in root_spans} == {("begin", events.RESOURCE_ADDED)}
    assert {span.parent_span_id for span in spans} - {b""} <= spans_by_id.keys()
    assert {("cordon", "begin"), ("taint", "cordon"), ("evict", "taint"), ("status", "evict")} <= span_and_parent_names
    assert {
        (span.name, get_event_type(span)) for span in spans if spans_by_id.get(span.parent_span_id) in root_spans
    } > {("cordon", events.MAINTENANCE_BEGUN)}  # The set also contains `pods.gone` events from PodSource.
    for span in spans:
        attributes = get_attributes(span)
        assert (attributes["k8s.node.name"], attributes["nodemaintenance.maintenance"]) == (node, uid)
        assert attributes["http.response.status_code"] in (200, 204, 503)
        assert attributes["cloudevents.event_id"]
        assert span.end_time_unix_nano > span.start_time_unix_nano
    attempts = {(span.name, get_attributes(span)["cloudevents.event_id"]) for span in spans}
    assert attempts == {
        (span.name, get_attributes(span)["cloudevents.event_id"]) for span in spans if not is_retry_request(span)
    }
    assert collector.services == {"node-maintenance"}
    assert "record" not in {span.name for span in spans}


def test_unavailable_collector_does_not_delay_drain(
    traced_environment: EventChainEnvironment, collector: Collector
) -> None:
    """Check that an unavailable collector does not delay a drain; spans are sent in the background or dropped."""
    collector.close()
    node = traced_environment.create_node()
    traced_environment.create_pods(node, 1)
    started = time.monotonic()

    traced_environment.wait_for_state(traced_environment.create_maintenance(node))

    assert time.monotonic() - started < 5


def is_retry_request(span: Span) -> bool:
    """Return whether the function requested a retry, for example after a conflict or on a slow machine."""
    return get_attributes(span)["http.response.status_code"] == 503


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ENDPOINT_VARIABLES}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, env={**variables, **environment}, capture_output=True, text=True)


def test_opentelemetry_is_not_imported_without_collector() -> None:
    code = (
        "import sys, functions.app; from functions.serving.tracing import AttemptTracer;"
        "AttemptTracer.from_environment();"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )

    assert run_python(code).stdout == "[]\n"


def test_server_exits_with_remedy_if_opentelemetry_is_missing() -> None:
    """Check that the server exits with a remedy if an OTLP collector is configured without OpenTelemetry installed."""
    code = (
        "import importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *args: None if name.startswith('opentelemetry') else find(name, *args);"
        "from functions.app import select_functions; select_functions()"
    )

    result = run_python(code, **{ENDPOINT_VARIABLES[0]: "http://127.0.0.1:4318"})

    assert result.returncode == 1
    assert result.stderr == (
        "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the OpenTelemetry library is not installed: "
        "run pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http\n"
    )
