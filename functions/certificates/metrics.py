"""Metrics of certificates, shown at `/metrics`; docs/observability.md names each."""

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
"""Values of these labels; when it was issued, and when it ends."""
FRESH_SECONDS = 60.0
"""Four ticks. Of several pods each hears some ticks only, and an old picture must not stay beside the new one."""


class Pictures(Collector):
    """When each certificate ends and was issued, as the last look found it, while that is fresh; and when a look has
    last read all."""

    def __init__(self) -> None:
        self._at = 0.0
        self._all_read_at: float | None = None
        self._dates: list[Dates] = []

    def update(self, dates: Iterable[Dates], unread: Collection[str]) -> None:
        """Take a new picture; of namespaces that could not be read, keep what was last known."""
        kept = [known for known in self._dates if known[0][1] in unread]
        self._dates = [*dates, *kept]
        self._at = time.time()
        if not unread:
            self._all_read_at = self._at

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
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
