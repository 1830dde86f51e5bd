"""The writes of one look at budgets of launcher pods, each by itself: what one meets keeps no other one waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kube.door.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.door.deadline import has_time, seconds_left, within

WRITE_SECONDS = 0.4
"""A write that takes longer hangs, but for the first one of a look: that may be slow, and has all but the rest."""
REST_SECONDS = 0.3
"""So much of a look is left for what comes behind its writes."""
log = logging.getLogger("functions")


class Writes:
    """What becomes of them.

    Attributes:
        unanswered: paths of what had no answer, or no time: it may be kept when it is tried again.
        sent: how many had time.
        ran_out: whether any had none.
    """

    def __init__(self) -> None:
        self.unanswered: list[str] = []
        self.sent = 0
        self.ran_out = False

    def tried(self, path: str, write: Callable[[], object]) -> bool:
        """Whether a write was kept. A refusal, by a quota as well, is no reason to try again before the tick.

        Not kept, too, is what has just gone, or come: the next event about it, or the tick, looks again.
        """
        if not has_time(REST_SECONDS):
            self.unanswered.append(path)
            self.ran_out = True
            return False
        self.sent += 1
        try:
            with within(self._seconds()):
                write()
        except (NotFound, Conflict):
            return False
        except ApiError as error:
            log.warning("nothing was written at %s: %s", path, error.message)
            self.unanswered.extend([path] if isinstance(error, Unavailable) else [])
            return False
        return True

    def _seconds(self) -> float:
        """How long the one that is being sent may take."""
        left = seconds_left()
        return min(left, max(WRITE_SECONDS, left - REST_SECONDS) if self.sent == 1 else WRITE_SECONDS)
