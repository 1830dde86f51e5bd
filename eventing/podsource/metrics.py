"""PodSource's metrics, shown at `/metrics`; docs/observability.md names each."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge

from kube.door.api_errors import ApiError
from kube.door.list_watch import Witness

HINTS = Counter("nodemaintenance_podsource_hints_total", "Hints that the sink accepted", ["type"])
FAILURES = Counter(
    "nodemaintenance_podsource_watch_failures_total", "Lists and watches that failed and were tried again", ["resource"]
)
WATCHES = Gauge("nodemaintenance_podsource_watches", "Watches under way", ["resource"])
NODES = Gauge("nodemaintenance_podsource_nodes", "Nodes whose drain is running")


class Counted(Witness):
    """Counts the watches of a resource and their failures."""

    def __init__(self, resource: str) -> None:
        self._watches, self._failures = WATCHES.labels(resource), FAILURES.labels(resource)

    def opened(self) -> None:
        """One more."""
        self._watches.inc()

    def closed(self) -> None:
        """One less."""
        self._watches.dec()

    def failed(self, error: ApiError) -> None:
        """Count it; the follower says why in the log."""
        self._failures.inc()


class Relisted(Counted):
    """The witness of a stream of these objects, which says as well when they were listed."""

    def __init__(self, resource: str, listed: Callable[[], None]) -> None:
        super().__init__(resource)
        self._listed = listed

    def listed(self) -> None:
        """Say it."""
        self._listed()
