"""Creates and exports OpenTelemetry spans; `tracing` imports this module only if a trace collector is configured.

This is the only module that imports the optional `opentelemetry` packages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanContext, SpanKind, StatusCode, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

PROPAGATOR = TraceContextTextMapPropagator()
ROOT_SPAN_CONTEXT: ContextVar[SpanContext | None] = ContextVar("ids of the span that begins a trace", default=None)


class MaintenanceIdGenerator(RandomIdGenerator):
    """Generator of random trace and span ids, except for the root span of a maintenance's trace.

    The ids of the root span are derived from the maintenance's uid.
    """

    def generate_trace_id(self) -> int:
        """Return the trace id of the current root span, or a random one."""
        root = ROOT_SPAN_CONTEXT.get()
        return root.trace_id if root else super().generate_trace_id()

    def generate_span_id(self) -> int:
        """Return the span id of the current root span, or a random one."""
        root = ROOT_SPAN_CONTEXT.get()
        return root.span_id if root else super().generate_span_id()


def create_tracer(service_name: str) -> Tracer:
    """Build this process's tracer; `OTEL_SERVICE_NAME` takes precedence over `service_name`."""
    resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or service_name})
    provider = TracerProvider(id_generator=MaintenanceIdGenerator(), resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("nodemaintenance")


@contextmanager
def start_span(
    tracer: Tracer, name: str, parent: str, *, is_root: bool, attributes: Mapping[str, str]
) -> Iterator[Span]:
    """Start a span as a child of the traceparent `parent` ("" for none), and end the span after the `with` block.

    If `is_root` is true, the span is instead the root of its trace, with the trace id and span id of `parent`.
    """
    parent_context = PROPAGATOR.extract({"traceparent": parent}) if parent else Context()
    token = ROOT_SPAN_CONTEXT.set(get_current_span(parent_context).get_span_context() if is_root else None)
    try:
        span = tracer.start_span(
            name, Context() if is_root else parent_context, SpanKind.CONSUMER, attributes=dict(attributes)
        )
    finally:
        ROOT_SPAN_CONTEXT.reset(token)
    try:
        yield span
    except BaseException as error:
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
        raise
    finally:
        span.end()


def format_traceparent(span: Span) -> str:
    """Return the span's context as a W3C traceparent, for the `traceparent` attribute of events."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def record_outcome(span: Span, status: int, error: str) -> None:
    """Record the function's response status and error in the span."""
    span.set_attribute("http.response.status_code", status)
    if status >= 400:
        span.set_status(StatusCode.ERROR, error)
