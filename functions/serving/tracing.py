"""Exports spans of the functions over OTLP if `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector.

Otherwise nothing is imported and nothing is measured. The usual `OTEL_*` variables apply, such as `OTEL_SERVICE_NAME`
and `OTEL_TRACES_SAMPLER`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from eventing import events, replay_extensions, trace_context
from eventing.journal.entries import maintenance_of, node_of
from functions.serving.attempts import OngoingAttempt

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SERVICE = "node-maintenance"
UNTRACED = ("record",)
"""Functions without spans: `record` receives every event, so its spans would add no information."""


def wanted(environment: Mapping[str, str]) -> bool:
    """Return whether spans must be exported. Raises `ValueError` if the required library is not installed."""
    if not any(environment.get(name) for name in ENDPOINTS):
        return False
    if not find_spec("opentelemetry") or not find_spec("opentelemetry.exporter"):
        remedy = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        raise ValueError(f"{ENDPOINTS[0]} is set and the library is missing: {remedy}")
    return True


class Spans:
    """Creates one span per attempt, or none without a tracer."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    @classmethod
    def of_environment(cls) -> Spans:
        """Build spans from the environment, which names the collector, if any.

        The library's own thread sends the spans to the collector in batches.
        """
        if not wanted(os.environ):
            return cls()
        from functions.serving.otlp import tracer

        return cls(tracer(SERVICE))

    @contextmanager
    def around(self, attempt: OngoingAttempt) -> Iterator[None]:
        """Create a span that lasts as long as the block and records the outcome of the attempt."""
        if self._tracer is None or attempt.function in UNTRACED or replay_extensions.is_replay(attempt.event):
            yield
            return
        from functions.serving import otlp

        uid, _ = maintenance_of(attempt.event)
        parent = trace_context.of(attempt.event) or (trace_context.root(uid) if uid else "")
        first = attempt.event.get_type() == events.RESOURCE_ADDED and not trace_context.of(attempt.event)
        attributes = _attributes(attempt, uid)
        with otlp.span(self._tracer, attempt.function, parent, first=first, attributes=attributes) as span:
            with trace_context.current(uid, otlp.traceparent(span)):
                yield
            otlp.ended(span, attempt.status, attempt.error)


def _attributes(attempt: OngoingAttempt, uid: str) -> dict[str, str]:
    """Return the attributes of a span.

    OpenTelemetry defines those for CloudEvents and Kubernetes; the one for the maintenance is our own.
    """
    attributes = {
        "cloudevents.event_id": attempt.event.get_id(),
        "cloudevents.event_source": attempt.event.get_source(),
        "cloudevents.event_type": attempt.event.get_type(),
        "k8s.node.name": node_of(attempt.event),
        "nodemaintenance.maintenance": uid,
    }
    return {name: value for name, value in attributes.items() if value}
