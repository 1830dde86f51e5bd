"""Prometheus metrics for the local delivery, listed in docs/reference.md."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Histogram buckets in seconds; a function responds within milliseconds to a second."""


class DeliveryMetrics:
    """All metrics for the local delivery, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "nodemaintenance_delivery"
        self.accepted = Counter(
            f"{prefix}_events_accepted",
            "Accepted events; unknown types count as other",
            ["type"],
            registry=self.registry,
        )
        self.attempts = Counter(
            f"{prefix}_attempts",
            "Delivery attempts by Trigger and result",
            ["trigger", "result"],
            registry=self.registry,
        )
        self.queued = Gauge(f"{prefix}_queue_length", "Pending deliveries, in flight or not", registry=self.registry)
        self.in_flight = Gauge(f"{prefix}_in_flight", "Requests to functions in flight", registry=self.registry)
        self.duration_seconds = Histogram(
            f"{prefix}_seconds",
            "Time that a function took to respond",
            ["trigger"],
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Return the metrics in the Prometheus exposition format."""
        return generate_latest(self.registry)
