"""Since when an event fails here, again and again: what does not pass is told, and not tried for ever (rule 11).

The broker tries in growing pauses, and nobody who looks at the maintenance knows of it. After a while the step answers
with its event of failure; from then on the tick tries, which emits the event anew anyway.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from cloudevents.core.base import BaseCloudEvent

TOLD_SECONDS = 30.0
"""A server that restarts, or many maintenances that begin at once, passes sooner; two ticks have tried by then, too."""
KEPT = 1000
"""Events that fail at once; of more, the oldest are forgotten and told later."""


class Failing:
    """The events of one function in a process that may succeed later. Safe between threads."""

    def __init__(self) -> None:
        self._since: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._lock = threading.Lock()

    def lasts(self, event: BaseCloudEvent) -> bool:
        """Note that the event has failed once more; whether it does for so long that it must be told."""
        now = time.monotonic()
        with self._lock:
            since = self._since.setdefault(_identity(event), now)
            if len(self._since) > KEPT:
                self._since.popitem(last=False)
        return now - since >= TOLD_SECONDS

    def passed(self, event: BaseCloudEvent) -> None:
        """Forget it: it is answered."""
        with self._lock:
            self._since.pop(_identity(event), None)


def _identity(event: BaseCloudEvent) -> tuple[str, str]:
    return event.get_source(), event.get_id()
