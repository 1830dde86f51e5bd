"""PodSource's metrics, served at `/metrics`; docs/observability.md describes each."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge

from kube.client.api_errors import ApiError
from kube.client.list_watch import Witness

HINTS = Counter("nodemaintenance_podsource_hints_total", "Hints that the sink accepted", ["type"])
FAILURES = Counter(
    "nodemaintenance_podsource_watch_failures_total", "Lists and watches that failed and were tried again", ["resource"]
)
WATCHES = Gauge("nodemaintenance_podsource_watches", "Watches under way", ["resource"])
NODES = Gauge("nodemaintenance_podsource_nodes", "Nodes whose drain is running")


class Counted(Witness):
    """Stream observer that counts a resource's watches and their failures."""

    def __init__(self, resource: str) -> None:
        self._watches, self._failures = WATCHES.labels(resource), FAILURES.labels(resource)

    def opened(self) -> None:
        """Count a started watch."""
        self._watches.inc()

    def closed(self) -> None:
        """Count an ended watch."""
        self._watches.dec()

    def failed(self, error: ApiError) -> None:
        """Count a failure; `follow` logs its reason."""
        self._failures.inc()


class Relisted(Counted):
    """Stream observer that also reports when the resource was listed."""

    def __init__(self, resource: str, listed: Callable[[], None]) -> None:
        super().__init__(resource)
        self._listed = listed

    def listed(self) -> None:
        """Report that the resource was listed."""
        self._listed()
