"""One at a time, and nobody behind one who tries in vain. Used by `database`, and by the function `record`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class OneTries:
    """A lock for what may be away: once it was, one thread tries it, and all others are refused at once.

    Threads that wait for a database which does not answer are threads that answer nobody, the kubelet's probe neither.
    """

    def __init__(self, trouble: type[Exception] | tuple[type[Exception], ...]) -> None:
        self._lock = threading.Lock()
        self._trouble, self._in_vain = trouble, False

    @contextmanager
    def turn(self, seconds: float) -> Iterator[None]:
        """Be the one; in: how long others are waited for. Raises `BlockingIOError` when they take longer."""
        if not self._lock.acquire(timeout=0 if self._in_vain else seconds):
            self._in_vain = True  # whoever has it may be waiting for an answer that never comes
            raise BlockingIOError("somebody else is at it, and has no answer yet")
        try:
            yield
            self._in_vain = False
        except self._trouble:
            self._in_vain = True
            raise
        finally:
            self._lock.release()
