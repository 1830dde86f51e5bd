"""Since when an event fails here, again and again: what does not pass is told, and not tried for ever (rule 11).

The broker tries in growing pauses, and nobody who looks at the maintenance knows of it. After a while the step answers
with its event of failure; from then on the tick tries, which emits the event anew anyway. What it emits is another
event: where the failure goes on, that one is answered at its first try, or a broker that keeps order would be given
them faster than it is rid of them. Not so an event of the API server: the status that tells of a failure is one more
write of the object, whose event would come at once, for as long as the words differ.
"""

from __future__ import annotations

import threading
import time

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.journal.entries import maintenance_of, node_of
from functions.newest import Newest

TOLD_SECONDS = 30.0
"""A server that restarts, or many maintenances that begin at once, passes sooner; two ticks have tried by then, too."""
LASTING_SECONDS = 120.0
"""For so long behind the last failure that was told, the next one counts as the same: eight ticks, and longer than a
broker pauses between two tries."""
KEPT = 1000
"""Events that fail at once, and kinds of them that are told; of more, the oldest are forgotten and told later."""

Moments = Newest[tuple[str, ...], float]


class Failing:
    """The events of one function in a process that may succeed later. Safe between threads."""

    def __init__(self) -> None:
        self._since = Moments(KEPT)
        self._told = Moments(KEPT)
        self._lock = threading.Lock()

    def lasts(self, event: BaseCloudEvent, *, busy: bool = False) -> bool:
        """Note that the event has failed once more; whether it, or its kind, does for so long that it must be told.

        What failed only because another try is under way, `busy`, is told by itself alone.
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
        """Forget it, and what was told of its kind: it is answered by the step itself."""
        with self._lock:
            self._since.pop(_identity(event), None)
            self._told.pop(_kind(event), None)


def _identity(event: BaseCloudEvent) -> tuple[str, ...]:
    return event.get_source(), event.get_id()


def _kind(event: BaseCloudEvent) -> tuple[str, ...]:
    """What the tick's next event for the same reason has in common with it; () for what none of ours has emitted."""
    if not event.get_source().startswith(events.SOURCE):
        return ()
    return event.get_type(), *maintenance_of(event), node_of(event)
