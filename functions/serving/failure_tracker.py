"""Detects events that fail repeatedly: a lasting failure is reported instead of retried forever (design rule 11).

While the broker retries with a growing backoff, the maintenance's status does not show the error. After
`REPORT_AFTER_SECONDS`, the step therefore replies with its failure event. From then on, each tick re-emits the event,
as a new event. If the new event fails as well, the failure is reported at its first attempt. Otherwise a broker that
keeps order would receive failing events faster than it could drop them.

API server events are different: reporting their failure writes the object's status. While the message keeps changing,
each such write immediately causes a new event.
"""

from __future__ import annotations

import threading
import time

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.journal.entries import get_node_name, get_object_identity
from functions.bounded_cache import BoundedCache

REPORT_AFTER_SECONDS = 30.0
"""Seconds after which a continuing failure is reported.

An API server restart, or the start of many maintenances, takes less time. Two ticks also retry within this time.
"""
SAME_FAILURE_SECONDS = 120.0
"""Seconds after a reported failure during which the next failure of its kind counts as the same failure.

The time is eight ticks, and longer than a broker's backoff between two attempts.
"""
MAX_TRACKED_EVENTS = 1000
"""Maximum number of failing events, and of reported kinds, to remember.

Beyond this limit, the oldest failures are forgotten, so that they are reported later.
"""

Timestamps = BoundedCache[tuple[str, ...], float]


class FailureTracker:
    """Events of one function that failed in this process and may still succeed. Thread-safe."""

    def __init__(self) -> None:
        self._failing_since = Timestamps(MAX_TRACKED_EVENTS)
        self._reported_at = Timestamps(MAX_TRACKED_EVENTS)
        self._lock = threading.Lock()

    def record_failure(self, event: BaseCloudEvent, *, busy: bool = False) -> bool:
        """Record a failure; return whether the event, or its kind, has failed for long enough to be reported.

        If the event failed only because another attempt is in progress (`busy`), failures of its kind do not count.
        """
        now, event_id, failure_key = time.monotonic(), _get_event_id(event), _build_failure_key(event)
        with self._lock:
            since, reported_at = self._failing_since.pop(event_id, now), self._reported_at.get(failure_key)
            is_same_failure = reported_at is not None and now - reported_at <= SAME_FAILURE_SECONDS and not busy
            is_lasting = now - since >= REPORT_AFTER_SECONDS or is_same_failure
            if not is_lasting:
                self._failing_since[event_id] = since
            elif failure_key:
                self._reported_at[failure_key] = now
        return is_lasting

    def record_success(self, event: BaseCloudEvent) -> None:
        """Forget the event's failures and the last report of its kind, because the step has processed the event."""
        with self._lock:
            self._failing_since.pop(_get_event_id(event), None)
            self._reported_at.pop(_build_failure_key(event), None)


def _get_event_id(event: BaseCloudEvent) -> tuple[str, ...]:
    return event.get_source(), event.get_id()


def _build_failure_key(event: BaseCloudEvent) -> tuple[str, ...]:
    """Return a key for the event's kind: the events that later ticks emit for the same reason have the same key.

    Returns () for an event that no step emitted.
    """
    if not event.get_source().startswith(events.SOURCE_PREFIX):
        return ()
    return event.get_type(), *get_object_identity(event), get_node_name(event)
