"""Metrics of every function, exposed at `/metrics` and listed in docs/reference.md. Replays are not counted."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets in seconds; no function should take longer than 2 s."""
FUNCTION_SECONDS = Histogram(
    "nodemaintenance_function_seconds", "Time for one event in a function", ["function"], buckets=DURATION_BUCKETS
)
FUNCTION_EVENTS = Counter(
    "nodemaintenance_function_events_total", "Events by function and HTTP status", ["function", "status"]
)
ATTEMPTS_LOST = Counter(
    "nodemaintenance_attempts_lost_total",
    "Attempts that are missing in the journal, because the journal was unavailable for too long",
)
DEAD_LETTERS_LOST = Counter(
    "nodemaintenance_dead_letters_lost_total",
    "Dead letters that functions posted and that are missing in the journal, because record refused them or the "
    "journal was unavailable for too long",
)
