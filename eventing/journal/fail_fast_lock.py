"""A lock that limits how many threads wait for a slow or unavailable resource. Used by `database` and `record`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

FEW = 3
"""Maximum threads that wait longer than `CROWDED_SECONDS`; a process that serves all functions has ten threads."""
CROWDED_SECONDS = 0.2
"""Seconds for which any number of threads may wait.

Holding the lock takes a few milliseconds, so that in a burst of a dozen threads each acquires it in time.
"""


class OneTries:
    """Lock for a resource that may be slow or unavailable.

    After a failure or timeout, one thread tries the resource and all others are refused at once. Otherwise all threads
    could wait for an unresponsive database, and none could respond to requests or to the kubelet's probes.
    """

    def __init__(self, trouble: type[Exception] | tuple[type[Exception], ...]) -> None:
        self._lock, self._places = threading.Lock(), threading.Semaphore(FEW)
        self._trouble, self._in_vain = trouble, False

    @contextmanager
    def turn(self, seconds: float, crowded: float = CROWDED_SECONDS) -> Iterator[None]:
        """Hold the lock during the block.

        Args:
            seconds: How long to wait for the lock.
            crowded: How long to wait if `FEW` threads already wait.

        Raises `BlockingIOError` if the lock is not acquired in time.
        """
        self._await(0 if self._in_vain else seconds, crowded)
        try:
            yield
            self._in_vain = False
        except self._trouble:
            self._in_vain = True
            raise
        finally:
            self._lock.release()

    def _await(self, seconds: float, crowded: float) -> None:
        if self._lock.acquire(timeout=min(seconds, crowded)):
            return
        if seconds > crowded:
            if not self._places.acquire(blocking=False):
                raise BlockingIOError("somebody else is at it, and others wait")
            try:
                if self._lock.acquire(timeout=seconds - crowded):
                    return
            finally:
                self._places.release()
        self._in_vain = True  # the holder may be waiting for a response that never comes
        raise BlockingIOError("somebody else is at it, and has no answer yet")
