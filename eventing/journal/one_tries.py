"""One at a time, and nobody behind one who tries in vain. Used by `database`, and by the function `record`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

FEW = 3
"""Threads that wait for a slow one: one process may serve all functions, and has ten."""
CROWDED_SECONDS = 0.2
"""How long the others wait: a turn takes some milliseconds, and whoever comes with a dozen others has his."""


class OneTries:
    """A lock for what may be slow, or away: once it was away, one thread tries it, and all others are refused at once.

    Threads that wait for a database which does not answer are threads that answer nobody, the kubelet's probe neither.
    """

    def __init__(self, trouble: type[Exception] | tuple[type[Exception], ...]) -> None:
        self._lock, self._places = threading.Lock(), threading.Semaphore(FEW)
        self._trouble, self._in_vain = trouble, False

    @contextmanager
    def turn(self, seconds: float, crowded: float = CROWDED_SECONDS) -> Iterator[None]:
        """Be the one; in: how long others are waited for, and how long where a few wait already.

        Raises `BlockingIOError` when they take longer.
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
        self._in_vain = True  # whoever has it may be waiting for an answer that never comes
        raise BlockingIOError("somebody else is at it, and has no answer yet")
