"""Batches the updates that several events make to one object: those that arrive during a write share the next write.

Concurrent writes would conflict, and each conflict costs another read. No update is dropped: each event is answered
after its update is written, and the broker redelivers the event if the write fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import contextmanager
from typing import Generic, TypeVar

from functions.failures import Retry
from kube.client.deadline import seconds_left

T = TypeVar("T")
Write = Callable[[Sequence[T]], None]
BUSY = "another write of it takes its time"


class Gathered(Generic[T]):
    """The updates of one write; the future `written` completes when the write has succeeded or failed."""

    def __init__(self) -> None:
        self.parts: list[T] = []
        self.written: Future[None] = Future()


class Gathering(Generic[T]):
    """Batching writer that runs one write at a time per object, within this process. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Gathered[T]] = {}
        self._under_way: set[str] = set()

    def write(self, thing: str, part: T, write: Write[T]) -> None:
        """Write `part` together with other updates that wait for the same object, and return after the write.

        Raises `Retry` if the previous write takes too long, or if the write fails in another caller's thread. If this
        caller runs the write, its exception is raised unchanged.
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
        """Wait until the previous write of `thing` ends, then run the block as the next one.

        Updates that arrive after the wait go into another write. Raises `Retry` if the wait takes too long.
        """
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
