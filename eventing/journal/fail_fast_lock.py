"""A lock that limits how many threads wait for a slow or unavailable resource; used by `database` and `record`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

MAX_WAITERS = 3
"""Maximum number of threads that wait longer than `CONTENDED_TIMEOUT_SECONDS`.

The limit leaves threads for other requests: a process that serves all functions has ten threads.
"""
CONTENDED_TIMEOUT_SECONDS = 0.2
"""Seconds for which any number of threads may wait.

A thread usually holds the lock for a few milliseconds, so a dozen threads can acquire it one after another in this
time.
"""


class FailFastLock:
    """A lock for a resource that may be slow or unavailable.

    After a failure or timeout, one thread tries to use the resource, and all others fail immediately. Otherwise, all
    threads could wait for an unresponsive database, and none could respond to requests or to the kubelet's probes.
    """

    def __init__(self, errors: type[Exception] | tuple[type[Exception], ...]) -> None:
        self._lock, self._waiter_slots = threading.Lock(), threading.Semaphore(MAX_WAITERS)
        self._errors, self._last_failed = errors, False

    @contextmanager
    def hold(self, timeout: float, contended_timeout: float = CONTENDED_TIMEOUT_SECONDS) -> Iterator[None]:
        """Hold the lock during the block.

        Args:
            timeout: Seconds to wait for the lock.
            contended_timeout: Seconds to wait if `MAX_WAITERS` threads already wait.

        Raises `BlockingIOError` if the lock is not acquired in time.
        """
        self._acquire(0 if self._last_failed else timeout, contended_timeout)
        try:
            yield
            self._last_failed = False
        except self._errors:
            self._last_failed = True
            raise
        finally:
            self._lock.release()

    def _acquire(self, timeout: float, contended_timeout: float) -> None:
        if self._lock.acquire(timeout=min(timeout, contended_timeout)):
            return
        if timeout > contended_timeout:
            if not self._waiter_slots.acquire(blocking=False):
                raise BlockingIOError("another thread holds the lock, and too many threads wait for it: retry")
            try:
                if self._lock.acquire(timeout=timeout - contended_timeout):
                    return
            finally:
                self._waiter_slots.release()
        self._last_failed = True  # The lock's holder may be waiting for a response that never arrives.
        raise BlockingIOError("another thread holds the lock and still waits for a response: retry")
