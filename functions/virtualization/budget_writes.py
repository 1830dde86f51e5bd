"""Writes one pass's changes to budgets of virt-launcher pods; a failed or slow write does not delay other writes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.deadline import get_seconds_left, has_seconds_left, set_deadline

WRITE_TIMEOUT_SECONDS = 0.4
"""Time limit for a write. The first write of a pass may be slow, so it gets all the time that is not reserved."""
RESERVED_SECONDS = 0.3
"""Time reserved in a pass for the work after its writes."""
log = logging.getLogger("functions")


class BudgetWriter:
    """Sends the writes of one pass, and collects their results.

    Attributes:
        unanswered: Paths of writes that got no response, or were skipped for lack of time; a retry may succeed.
        sent_count: Number of writes that were sent.
        ran_out_of_time: Whether a write was skipped for lack of time.
    """

    def __init__(self) -> None:
        self.unanswered: list[str] = []
        self.sent_count = 0
        self.ran_out_of_time = False

    def try_write(self, path: str, write: Callable[[], object]) -> bool:
        """Send a write, and return whether it succeeded.

        A write that was rejected, for example by a quota, is retried only by the tick. If the object was
        deleted, or created by another client, the next event about the object or the tick retries.
        """
        if not has_seconds_left(RESERVED_SECONDS):
            self.unanswered.append(path)
            self.ran_out_of_time = True
            return False
        self.sent_count += 1
        try:
            with set_deadline(self._get_timeout()):
                write()
        except (NotFound, Conflict):
            return False
        except ApiError as error:
            log.warning("cannot write %s: %s", path, error.message)
            self.unanswered.extend([path] if isinstance(error, Unavailable) else [])
            return False
        return True

    def _get_timeout(self) -> float:
        """Return the time limit of the write that is being sent."""
        left = get_seconds_left()
        return min(
            left, max(WRITE_TIMEOUT_SECONDS, left - RESERVED_SECONDS) if self.sent_count == 1 else WRITE_TIMEOUT_SECONDS
        )
