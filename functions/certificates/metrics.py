"""Metrics of certificates, shown at `/metrics`; docs/observability.md names each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime

from prometheus_client import REGISTRY, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

RENEWALS = Counter("nodemaintenance_certificate_renewals_total", "Certificates issued", ["component"])
FAILURES = Counter(
    "nodemaintenance_certificate_failures_total", "Looks at certificates that could not do what was due", ["component"]
)
LABELS = ["component", "namespace", "secret"]
Dates = tuple[tuple[str, str, str], datetime, datetime]
"""Values of these labels; when it was issued, and when it ends."""
FRESH_SECONDS = 60.0
"""Four ticks. Of several pods each hears some ticks only, and an old picture must not stay beside the new one."""


class Pictures(Collector):
    """When each certificate ends and was issued, as the last look found it; when it is old, only when that look was."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._dates: list[Dates] = []

    def update(self, dates: Iterable[Dates]) -> None:
        """Take a new picture."""
        self._dates = list(dates)
        self._at = time.time()

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        if self._at is None:
            return
        yield GaugeMetricFamily("nodemaintenance_certificates_timestamp_seconds", "Last look", value=self._at)
        if time.time() - self._at > FRESH_SECONDS:
            return
        ends = GaugeMetricFamily("nodemaintenance_certificate_ends_timestamp_seconds", "When it expires", labels=LABELS)
        began = GaugeMetricFamily(
            "nodemaintenance_certificate_issued_timestamp_seconds", "When it was renewed last", labels=LABELS
        )
        for key, issue, end in self._dates:
            began.add_metric(key, issue.timestamp())
            ends.add_metric(key, end.timestamp())
        yield ends
        yield began


PICTURES = Pictures()
REGISTRY.register(PICTURES)
