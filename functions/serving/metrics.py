"""Metrics of every function, exposed at `/metrics`; docs/observability.md describes each. Replays are not counted."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets in seconds; no function should take longer than 2 s."""
SECONDS = Histogram(
    "nodemaintenance_function_seconds", "Time one event took in a function", ["function"], buckets=SHORT
)
RESULTS = Counter("nodemaintenance_function_events_total", "Events by function and answer", ["function", "status"])
ATTEMPTS_LOST = Counter(
    "nodemaintenance_attempts_lost_total", "Runs that the journal does not know of: it was away too long"
)
LETTERS_LOST = Counter(
    "nodemaintenance_dead_letters_lost_total",
    "Dead letters of the function that the journal does not know of: it was away too long, or refused them",
)
