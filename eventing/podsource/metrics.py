"""PodSource's metrics, served at `/metrics` and listed in docs/reference.md."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge

from kube.client.api_errors import ApiError
from kube.client.list_watch import StreamObserver

HINTS_SENT = Counter("nodemaintenance_podsource_hints_total", "Hint events that the broker accepted", ["type"])
WATCH_FAILURES = Counter(
    "nodemaintenance_podsource_watch_failures_total",
    "Lists and watches that were refused or interrupted; PodSource retries them with pauses of up to 30 s",
    ["resource"],
)
OPEN_WATCHES = Gauge(
    "nodemaintenance_podsource_watches",
    "Active watches: one for each NodeMaintenance kind and, during drains, one for the budgets and one for the pods of "
    "each node",
    ["resource"],
)
DRAINING_NODES = Gauge("nodemaintenance_podsource_nodes", "Nodes with a running drain")


class WatchMetricsObserver(StreamObserver):
    """Counts the watches of one resource and their failures."""

    def __init__(self, resource: str) -> None:
        self._watches, self._failures = OPEN_WATCHES.labels(resource), WATCH_FAILURES.labels(resource)

    def on_watch_opened(self) -> None:
        """Increment the number of open watches."""
        self._watches.inc()

    def on_watch_closed(self) -> None:
        """Decrement the number of open watches."""
        self._watches.dec()

    def on_failed(self, error: ApiError) -> None:
        """Increment the number of failures; `follow` logs the error."""
        self._failures.inc()


class RelistObserver(WatchMetricsObserver):
    """Counts watches and failures, and also calls a callback whenever the resource has been listed."""

    def __init__(self, resource: str, on_listed: Callable[[], None]) -> None:
        super().__init__(resource)
        self._on_listed = on_listed

    def on_listed(self) -> None:
        """Call the callback, because the resource has been listed."""
        self._on_listed()
