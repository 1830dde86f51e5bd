"""Detects events that fail repeatedly, so that a lasting failure is reported, not retried forever (design rule 11).

While the broker retries an event with a growing backoff, the maintenance's status does not report the error. After
`REPORT_AFTER_SECONDS`, the function therefore returns the step's failure event instead of an error. From then on,
`resync` periodically re-emits the original event, with a new id. If the re-emitted event fails as well, its first
attempt reports the failure. Otherwise a broker with ordered delivery would receive failing events faster than it could
drop them.

This does not apply to API server events. Reporting their failure writes the object's status, which causes another API
server event. If the first attempt of each reported its failure, a changing message would cause a tight loop.
"""

from __future__ import annotations

import threading
import time

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.journal.entries import get_node_name, get_object_identity
from functions.bounded_cache import BoundedCache

REPORT_AFTER_SECONDS = 30.0
"""Seconds for which an event must keep failing before the failure is reported.

A restart of the API server, or a start of many maintenances, takes less time.
"""
SAME_FAILURE_SECONDS = 120.0
"""Seconds after a reported failure during which a failure of a re-emitted event counts as the same failure.

This time is longer than a broker's backoff between two attempts, and `resync` runs eight times in it.
"""
MAX_TRACKED_EVENTS = 1000
"""Maximum number of failing events, and of reported failures, to remember.

Beyond this limit, the tracker forgets the oldest ones, whose failures are then reported later.
"""

Timestamps = BoundedCache[tuple[str, ...], float]


class FailureTracker:
    """Tracker of one function's events that failed in this process and may succeed on a retry. Thread-safe."""

    def __init__(self) -> None:
        self._failing_since = Timestamps(MAX_TRACKED_EVENTS)
        self._reported_at = Timestamps(MAX_TRACKED_EVENTS)
        self._lock = threading.Lock()

    def record_failure(self, event: BaseCloudEvent, *, busy: bool = False) -> bool:
        """Record a failure; return whether it must be reported now.

        A failure must be reported if the event has been failing for `REPORT_AFTER_SECONDS`. It must also be reported if
        the failure of an earlier event with the same failure key was reported recently. The second rule does not apply
        if the event failed only because another attempt is in progress (`busy`).
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
        """Forget the event's failures, and the reported failure of earlier events with the same failure key."""
        with self._lock:
            self._failing_since.pop(_get_event_id(event), None)
            self._reported_at.pop(_build_failure_key(event), None)


def _get_event_id(event: BaseCloudEvent) -> tuple[str, ...]:
    return event.get_source(), event.get_id()


def _build_failure_key(event: BaseCloudEvent) -> tuple[str, ...]:
    """Return a key that is equal for an event and for the later events that `resync` emits in its place.

    Returns () for an event from an event source, which no step has emitted.
    """
    if not event.get_source().startswith(events.SOURCE_PREFIX):
        return ()
    return event.get_type(), *get_object_identity(event), get_node_name(event)
