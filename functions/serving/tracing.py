"""Spans of the functions, told by OTLP when `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector.

Without it nothing is imported and nothing is measured. With it, the usual `OTEL_*` variables apply, e.g.
`OTEL_SERVICE_NAME` and `OTEL_TRACES_SAMPLER`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from eventing import events, marks, traces
from eventing.journal.entries import maintenance_of, node_of
from functions.serving.attempts import Run

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SERVICE = "node-maintenance"
UNTRACED = ("record",)
"""It hears every event; its spans would say nothing that the others do not."""


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether spans are to be told. Raises `ValueError` when the library for it is not installed."""
    if not any(environment.get(name) for name in ENDPOINTS):
        return False
    if not find_spec("opentelemetry") or not find_spec("opentelemetry.exporter"):
        raise ValueError(f"{ENDPOINTS[0]} is set and the library is missing: pip install 'function[tracing]'")
    return True


class Spans:
    """One span for each run of a function; none without a tracer."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    @classmethod
    def of_environment(cls) -> Spans:
        """To the collector that the environment names, in batches, by a thread of the library's own."""
        if not wanted(os.environ):
            return cls()
        from functions.serving.otlp import tracer

        return cls(tracer(SERVICE))

    @contextmanager
    def around(self, run: Run) -> Iterator[None]:
        """A span that lasts as long as the block, and says what came of the run."""
        if self._tracer is None or run.function in UNTRACED or marks.is_replay(run.event):
            yield
            return
        from functions.serving import otlp

        uid, _ = maintenance_of(run.event)
        parent = traces.of(run.event) or (traces.root(uid) if uid else "")
        first = run.event.get_type() == events.RESOURCE_ADDED and not traces.of(run.event)
        with otlp.span(self._tracer, run.function, parent, first=first, attributes=_attributes(run, uid)) as span:
            with traces.current(uid, otlp.traceparent(span)):
                yield
            otlp.ended(span, run.status, run.error)


def _attributes(run: Run, uid: str) -> dict[str, str]:
    """OpenTelemetry's words for CloudEvents and Kubernetes, and ours for the maintenance."""
    said = {
        "cloudevents.event_id": run.event.get_id(),
        "cloudevents.event_source": run.event.get_source(),
        "cloudevents.event_type": run.event.get_type(),
        "k8s.node.name": node_of(run.event),
        "nodemaintenance.maintenance": uid,
    }
    return {name: value for name, value in said.items() if value}
