"""Metrics of certificates, exposed at `/metrics`; docs/observability.md describes each."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
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
"""Values of `LABELS`, and the times at which the certificate was issued and expires."""
FRESH_SECONDS = 60.0
"""Time after which dates are not exposed any more: four ticks.

Each of several pods receives only some ticks, and must not expose outdated dates next to the newer ones of another pod.
"""


class Pictures(Collector):
    """Collector for the dates of all certificates from the last pass, while they are fresh.

    It also exposes the time of the last pass that read every namespace.
    """

    def __init__(self) -> None:
        self._at = 0.0
        self._all_read_at: float | None = None
        self._dates: list[Dates] = []

    def update(self, dates: Iterable[Dates], unread: Collection[str]) -> None:
        """Store the dates from a pass; keep the last known dates of namespaces that could not be read."""
        kept = [known for known in self._dates if known[0][1] in unread]
        self._dates = [*dates, *kept]
        self._at = time.time()
        if not unread:
            self._all_read_at = self._at

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        name = "nodemaintenance_certificates_timestamp_seconds"
        if self._all_read_at is not None:
            yield GaugeMetricFamily(name, "Last look that read every namespace", value=self._all_read_at)
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
