"""Gathers what several events say of one thing while it is being written; the next write takes all of it together.

Side by side their writes would conflict, and each conflict costs another look. Nothing is absorbed: each event is
answered when what it says is written, and tried again by the broker when it is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import contextmanager
from typing import Generic, TypeVar

from functions.failures import Retry
from kube.door.deadline import seconds_left

T = TypeVar("T")
Write = Callable[[Sequence[T]], None]
BUSY = "another write of it takes its time"


class Gathered(Generic[T]):
    """What goes into one write; `written` is set when that has been done, or has failed."""

    def __init__(self) -> None:
        self.parts: list[T] = []
        self.written: Future[None] = Future()


class Gathering(Generic[T]):
    """One write at a time of each thing, within a process. Safe between threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Gathered[T]] = {}
        self._under_way: set[str] = set()

    def write(self, thing: str, part: T, write: Write[T]) -> None:
        """Have `part` written, with others that wait for the same thing; returns when it is.

        Raises `Retry` when the write of before takes its time, or that of another caller fails; what `write` raises
        when it is this caller's.
        """
        with self._changed:
            first = thing not in self._waiting
            gathered = self._waiting.setdefault(thing, Gathered())
            gathered.parts.append(part)
        if first:
            self._write(thing, gathered, write)
        else:
            _await(gathered)

    def _write(self, thing: str, gathered: Gathered[T], write: Write[T]) -> None:
        try:
            with self._turn(thing):
                write(gathered.parts)
        except BaseException as error:
            gathered.written.set_exception(Retry(str(error)))
            raise
        gathered.written.set_result(None)

    @contextmanager
    def _turn(self, thing: str) -> Iterator[None]:
        """Wait for the write of before; what comes from now on waits for the next one."""
        with self._changed:
            try:
                free = self._changed.wait_for(lambda: thing not in self._under_way, seconds_left())
            finally:
                del self._waiting[thing]
            if not free:
                raise Retry(BUSY)
            self._under_way.add(thing)
        try:
            yield
        finally:
            with self._changed:
                self._under_way.discard(thing)
                self._changed.notify_all()


def _await(gathered: Gathered[T]) -> None:
    try:
        gathered.written.result(seconds_left())
    except TimeoutError:
        raise Retry(BUSY) from None
