"""Tests of the spans that an OTLP collector receives during a real drain."""

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
from functions.serving.tracing import ENDPOINTS
from tests.chain.environment import Scene
from tests.receiver import Answer, Received, Receiver

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


class Collector:
    """OTLP collector that stores the spans that it receives over HTTP in protobuf."""

    def __init__(self) -> None:
        self.services: set[str] = set()
        self._spans: list[Span] = []
        self._receiver = Receiver(otherwise=lambda _: Answer(404))
        self._receiver.answers["/v1/traces"] = self._take
        self.url, self.close = self._receiver.url, self._receiver.close

    def _take(self, request: Received) -> Answer:
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            named = {item.key: item.value.string_value for item in resource.resource.attributes}
            self.services.add(named["service.name"])
            self._spans += [span for scope in resource.scope_spans for span in scope.spans]
        return Answer(200)

    def until(self, done: Callable[[list[Span]], bool]) -> list[Span]:
        """Wait until `done` returns true for the spans, and return them."""
        self._receiver.wait(lambda: done(list(self._spans)))
        return list(self._spans)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


@pytest.fixture(scope="module")
def traced(scene: Scene, collector: Collector) -> Iterator[Scene]:
    """Yield the environment whose functions send spans to the collector."""
    functions, before = scene.product.functions, dict(scene.product.functions.env)
    # the delay between two batches, in milliseconds
    functions.env |= {ENDPOINTS[0]: collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    functions.stop()
    scene.product.start_functions()
    yield scene
    functions.env = before
    functions.stop()
    scene.product.start_functions()


def attributes(span: Span) -> dict[str, str | int]:
    return {item.key: item.value.string_value or item.value.int_value for item in span.attributes}


def about(span: Span) -> str:
    return str(attributes(span)["cloudevents.event_type"])


def test_a_drain_is_one_trace_whose_spans_follow_from_each_other(traced: Scene, collector: Collector) -> None:
    """Drains produce one trace: its id is the maintenance's uid, and each span's parent belongs to it."""
    node = traced.node()
    traced.pods(node, 3, delete="500ms")
    path = traced.maintain(node)
    traced.reaches(path)
    uid = traced.admin.get(path)["metadata"]["uid"]

    def ours(spans: list[Span]) -> list[Span]:
        return [span for span in spans if span.trace_id.hex() == uuid.UUID(uid).hex]

    spans = ours(
        collector.until(
            lambda spans: any(span.name == "status" and about(span) == events.NODE_DRAINED for span in ours(spans))
        )
    )
    by_id = {span.span_id: span for span in spans}
    roots = [span for span in spans if not span.parent_span_id]
    steps = {(span.name, by_id[span.parent_span_id].name) for span in spans if span.parent_span_id}

    assert [(span.name, about(span)) for span in roots] == [("begin", events.RESOURCE_ADDED)]
    assert {span.parent_span_id for span in spans} - {b""} <= by_id.keys()
    assert {("cordon", "begin"), ("taint", "cordon"), ("evict", "taint"), ("status", "evict")} <= steps
    assert {(span.name, about(span)) for span in spans if by_id.get(span.parent_span_id) in roots} > {
        ("cordon", events.MAINTENANCE_BEGUN)
    }  # and `pods.gone`, which the PodSource sent
    for span in spans:
        said = attributes(span)
        assert (said["k8s.node.name"], said["nodemaintenance.maintenance"]) == (node, uid)
        assert said["http.response.status_code"] in (200, 204, 503)
        assert said["cloudevents.event_id"]
        assert span.end_time_unix_nano > span.start_time_unix_nano
    attempts = {(span.name, attributes(span)["cloudevents.event_id"]) for span in spans}
    assert attempts == {(span.name, attributes(span)["cloudevents.event_id"]) for span in spans if not refused(span)}
    assert collector.services == {"node-maintenance"}
    assert "record" not in {span.name for span in spans}


def test_a_collector_that_is_away_costs_no_time(traced: Scene, collector: Collector) -> None:
    """Drains take the usual time without a collector; spans are sent in the background and dropped on failure."""
    collector.close()
    node = traced.node()
    traced.pods(node, 1)
    started = time.monotonic()

    traced.reaches(traced.maintain(node))

    assert time.monotonic() - started < 5


def refused(span: Span) -> bool:
    """Return whether the step asked for a retry, because of a conflict or a slow machine."""
    return attributes(span)["http.response.status_code"] == 503


def in_a_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if name not in ENDPOINTS}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, env={**without, **environment}, capture_output=True, text=True)


def test_without_a_collector_the_library_is_not_even_imported() -> None:
    code = (
        "import sys, functions.app; from functions.serving.tracing import Spans; Spans.of_environment();"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )

    assert in_a_process(code).stdout == "[]\n"


def test_a_collector_without_the_library_is_one_line_at_the_start() -> None:
    """Exit with one line that contains the remedy if a collector is set without the OpenTelemetry library."""
    code = (
        "import importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *more: None if name.startswith('opentelemetry') else find(name, *more);"
        "from functions.app import chosen; chosen()"
    )

    done = in_a_process(code, **{ENDPOINTS[0]: "http://127.0.0.1:4318"})

    assert done.returncode == 1
    assert done.stderr == (
        "OTEL_EXPORTER_OTLP_ENDPOINT is set and the library is missing: "
        "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http\n"
    )
