"""Metrics of certificates, exposed at `/metrics` and listed in docs/reference.md."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from prometheus_client import REGISTRY, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

RENEWALS = Counter("nodemaintenance_certificate_renewals_total", "Certificates and CAs that were issued", ["component"])
FAILURES = Counter(
    "nodemaintenance_certificate_failures_total",
    "Passes that failed to make a change that was due; without a component if a namespace or the CA injection targets "
    "could not be read",
    ["component"],
)
LABEL_NAMES = ["component", "namespace", "secret"]
CertificateDates = tuple[tuple[str, str, str], datetime, datetime]
"""A certificate's metric labels (see `LABEL_NAMES`), issue time and expiry time."""
SNAPSHOT_TTL_SECONDS = 60.0
"""Seconds after a pass for which its certificate dates are exposed: four intervals of the PingSource.

Each replica receives only some of the PingSource's events. A replica must not expose outdated dates while another
replica exposes newer ones.
"""


class CertificateCollector(Collector):
    """Collector that exposes the issue and expiry times of all certificates that the last pass has read.

    The times are not exposed if that pass ended more than `SNAPSHOT_TTL_SECONDS` ago. The collector also exposes the
    time of the last pass that read every namespace.
    """

    def __init__(self) -> None:
        self._updated_at = 0.0
        self._all_read_at: float | None = None
        self._dates: list[CertificateDates] = []

    def update(self, dates: Iterable[CertificateDates], unread_namespaces: Collection[str]) -> None:
        """Store the certificate dates from a pass; for `unread_namespaces`, keep the previous dates."""
        kept = [previous for previous in self._dates if previous[0][1] in unread_namespaces]
        self._dates = [*dates, *kept]
        self._updated_at = time.time()
        if not unread_namespaces:
            self._all_read_at = self._updated_at

    def describe(self) -> tuple[GaugeMetricFamily, ...]:
        """Return the gauges without samples."""
        return (
            GaugeMetricFamily(
                "nodemaintenance_certificates_timestamp_seconds",
                "Time of the last pass of renew-certificates that read all of its namespaces",
            ),
            GaugeMetricFamily(
                "nodemaintenance_certificate_ends_timestamp_seconds",
                "Time at which the certificate expires; subtract time() for the remaining time",
                labels=LABEL_NAMES,
            ),
            GaugeMetricFamily(
                "nodemaintenance_certificate_issued_timestamp_seconds", "Time of the last renewal", labels=LABEL_NAMES
            ),
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges with one sample per certificate."""
        all_read_at, expiry, issued = self.describe()
        if self._all_read_at is not None:
            all_read_at.add_metric((), self._all_read_at)
            yield all_read_at
        if time.time() - self._updated_at > SNAPSHOT_TTL_SECONDS:
            return
        for key, issued_at, expires_at in self._dates:
            issued.add_metric(key, issued_at.timestamp())
            expiry.add_metric(key, expires_at.timestamp())
        yield expiry
        yield issued


CERTIFICATE_COLLECTOR = CertificateCollector()
REGISTRY.register(CERTIFICATE_COLLECTOR)
