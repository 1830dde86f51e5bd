"""Detects events that fail repeatedly: a lasting failure is reported, and not retried forever (rule 11).

While the broker retries with a growing backoff, the status of the maintenance does not show the error. After some time
the step therefore replies with its failure event. From then on the tick retries, because it emits the event again
anyway. That is a new event. If the failure continues, it is reported at the first attempt. Otherwise a broker that
keeps order would receive such events faster than it could drop them.

Events of the API server are different: reporting their failure in the status is another write of the object. That write
causes a new event at once, as long as the message changes.
"""

from __future__ import annotations

import threading
import time

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.journal.entries import get_node_name, get_object_identity
from functions.bounded_cache import BoundedCache

REPORT_AFTER_SECONDS = 30.0
"""Age of a failure at which it is reported.

A restart of the API server, or the start of many maintenances, is over sooner. Two ticks have also retried within this
time.
"""
SAME_FAILURE_SECONDS = 120.0
"""Time after a reported failure in which the next one of its kind counts as the same.

It spans eight ticks, and is longer than a broker's backoff between two attempts.
"""
MAX_TRACKED_EVENTS = 1000
"""Maximum number of failing events, and of reported kinds, to remember.

Beyond that, the oldest are forgotten and reported later.
"""

Timestamps = BoundedCache[tuple[str, ...], float]


class FailureTracker:
    """Events of one function that failed in this process and may still succeed. Thread-safe."""

    def __init__(self) -> None:
        self._failing_since = Timestamps(MAX_TRACKED_EVENTS)
        self._reported_at = Timestamps(MAX_TRACKED_EVENTS)
        self._lock = threading.Lock()

    def record_failure(self, event: BaseCloudEvent, *, busy: bool = False) -> bool:
        """Note that the event has failed; return whether it, or its kind, has failed long enough to be reported.

        If it failed only because another attempt is in progress (`busy`), only the event's own age counts.
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
        """Forget the event's failures and the report of its kind, because the step has replied itself."""
        with self._lock:
            self._failing_since.pop(_get_event_id(event), None)
            self._reported_at.pop(_build_failure_key(event), None)


def _get_event_id(event: BaseCloudEvent) -> tuple[str, ...]:
    return event.get_source(), event.get_id()


def _build_failure_key(event: BaseCloudEvent) -> tuple[str, ...]:
    """Return what the event shares with the tick's next event for the same reason.

    It is () for an event that no step has emitted.
    """
    if not event.get_source().startswith(events.SOURCE_PREFIX):
        return ()
    return event.get_type(), *get_object_identity(event), get_node_name(event)
