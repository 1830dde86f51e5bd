"""Writes one pass's changes to budgets of virt-launcher pods; a failed or slow write does not delay the others."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.deadline import has_time, seconds_left, within

WRITE_SECONDS = 0.4
"""Time limit of a write. The first write of a pass may be slow, and gets all time that is not reserved."""
REST_SECONDS = 0.3
"""Time reserved in a pass for the work after its writes."""
log = logging.getLogger("functions")


class Writes:
    """The writes of one pass, and their results.

    Attributes:
        unanswered: Paths whose write had no response or no time; a retry may succeed.
        sent: Number of writes that were sent.
        ran_out: Whether the time was over before a write.
    """

    def __init__(self) -> None:
        self.unanswered: list[str] = []
        self.sent = 0
        self.ran_out = False

    def tried(self, path: str, write: Callable[[], object]) -> bool:
        """Send a write, and return whether it succeeded.

        A rejected write, for example by a quota, is only retried by the tick. If the object is gone or exists already,
        the next event about it or the tick retries.
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
        """Return the time limit of the write that is being sent."""
        left = seconds_left()
        return min(left, max(WRITE_SECONDS, left - REST_SECONDS) if self.sent == 1 else WRITE_SECONDS)
