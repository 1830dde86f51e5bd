"""Creates one OpenTelemetry span per attempt and exports it over OTLP, if `OTEL_EXPORTER_OTLP_ENDPOINT` is set.

If the variable is not set, OpenTelemetry is not imported and no spans are created. The standard `OTEL_*` variables
apply, such as `OTEL_SERVICE_NAME` and `OTEL_TRACES_SAMPLER`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from eventing import events, extensions
from eventing.journal.entries import get_node_name, get_object_identity
from functions.serving.attempts import OngoingAttempt

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
DEFAULT_SERVICE_NAME = "node-maintenance"
UNTRACED_FUNCTIONS = ("record",)
"""Functions without spans: `record` consumes every event, so its spans would add no information."""


def is_tracing_enabled(environment: Mapping[str, str]) -> bool:
    """Return whether a collector is configured. Raises `ValueError` if the OpenTelemetry library is not installed."""
    if not any(environment.get(name) for name in ENDPOINT_VARIABLES):
        return False
    if not find_spec("opentelemetry") or not find_spec("opentelemetry.exporter"):
        remedy = "run pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        raise ValueError(f"{ENDPOINT_VARIABLES[0]} is set, but the OpenTelemetry library is not installed: {remedy}")
    return True


class AttemptTracer:
    """Creator of one span per attempt; without a tracer, it creates no spans."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    @classmethod
    def from_environment(cls) -> AttemptTracer:
        """Build a tracer for the collector that the environment configures, or one that creates no spans.

        A background thread of the OpenTelemetry library sends the spans to the collector in batches.
        """
        if not is_tracing_enabled(os.environ):
            return cls()
        from functions.serving.otlp import create_tracer

        return cls(create_tracer(DEFAULT_SERVICE_NAME))

    @contextmanager
    def trace_attempt(self, attempt: OngoingAttempt) -> Iterator[None]:
        """Create a span for the duration of the `with` block, and record the outcome of the attempt in it."""
        if self._tracer is None or attempt.function in UNTRACED_FUNCTIONS or extensions.is_replay(attempt.event):
            yield
            return
        from functions.serving import otlp

        uid, _ = get_object_identity(attempt.event)
        parent = extensions.get_traceparent(attempt.event) or (extensions.build_root_traceparent(uid) if uid else "")
        is_root = attempt.event.get_type() == events.RESOURCE_ADDED and not extensions.get_traceparent(attempt.event)
        attributes = _build_attributes(attempt, uid)
        with otlp.start_span(self._tracer, attempt.function, parent, is_root=is_root, attributes=attributes) as span:
            with extensions.use_span(uid, otlp.format_traceparent(span)):
                yield
            otlp.record_outcome(span, attempt.status, attempt.error)


def _build_attributes(attempt: OngoingAttempt, uid: str) -> dict[str, str]:
    """Return the attributes of the attempt's span.

    All follow OpenTelemetry's semantic conventions, except `nodemaintenance.maintenance`, the maintenance's uid.
    """
    attributes = {
        "cloudevents.event_id": attempt.event.get_id(),
        "cloudevents.event_source": attempt.event.get_source(),
        "cloudevents.event_type": attempt.event.get_type(),
        "k8s.node.name": get_node_name(attempt.event),
        "nodemaintenance.maintenance": uid,
    }
    return {name: value for name, value in attributes.items() if value}
