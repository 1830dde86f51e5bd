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
from eventing.journal.entries import maintenance_of, node_of
from functions.bounded_cache import Newest

TOLD_SECONDS = 30.0
"""Age of a failure at which it is reported.

A restart of the API server, or the start of many maintenances, is over sooner. Two ticks have also retried within this
time.
"""
LASTING_SECONDS = 120.0
"""Time after a reported failure in which the next one of its kind counts as the same.

It spans eight ticks, and is longer than a broker's backoff between two attempts.
"""
KEPT = 1000
"""Maximum number of failing events, and of reported kinds, to remember.

Beyond that, the oldest are forgotten and reported later.
"""

Moments = Newest[tuple[str, ...], float]


class Failing:
    """Events of one function that failed in this process and may still succeed. Thread-safe."""

    def __init__(self) -> None:
        self._since = Moments(KEPT)
        self._told = Moments(KEPT)
        self._lock = threading.Lock()

    def lasts(self, event: BaseCloudEvent, *, busy: bool = False) -> bool:
        """Note that the event has failed; return whether it, or its kind, has failed long enough to be reported.

        If it failed only because another attempt is in progress (`busy`), only the event's own age counts.
        """
        now, identity, kind = time.monotonic(), _identity(event), _kind(event)
        with self._lock:
            since, told = self._since.pop(identity, now), self._told.get(kind)
            goes_on = told is not None and now - told <= LASTING_SECONDS and not busy
            lasts = now - since >= TOLD_SECONDS or goes_on
            if not lasts:
                self._since[identity] = since
            elif kind:
                self._told[kind] = now
        return lasts

    def passed(self, event: BaseCloudEvent) -> None:
        """Forget the event's failures and the report of its kind, because the step has replied itself."""
        with self._lock:
            self._since.pop(_identity(event), None)
            self._told.pop(_kind(event), None)


def _identity(event: BaseCloudEvent) -> tuple[str, ...]:
    return event.get_source(), event.get_id()


def _kind(event: BaseCloudEvent) -> tuple[str, ...]:
    """Return what the event shares with the tick's next event for the same reason.

    It is () for an event that no step has emitted.
    """
    if not event.get_source().startswith(events.SOURCE):
        return ()
    return event.get_type(), *maintenance_of(event), node_of(event)
