"""Batches this process's status writes of one maintenance.

Updates from events that arrive during a write share the next write: concurrent writes would conflict, and each conflict
requires another read. No update is dropped: each event is answered only after its update is written, and the broker
redelivers the event if the write fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import contextmanager
from typing import Generic, TypeVar

from functions.failures import Retry
from kube.client.deadline import get_seconds_left

T = TypeVar("T")
WriteFunction = Callable[[Sequence[T]], None]
BUSY_MESSAGE = "the previous write of the same object is still in progress"


class PendingBatch(Generic[T]):
    """Updates that share one write; the future `done` completes when the write has succeeded or failed."""

    def __init__(self) -> None:
        self.updates: list[T] = []
        self.done: Future[None] = Future()


class WriteBatcher(Generic[T]):
    """Batching writer that runs one write at a time per object, within this process. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: dict[str, PendingBatch[T]] = {}
        self._in_flight: set[str] = set()

    def write(self, key: str, update: T, write_updates: WriteFunction[T]) -> None:
        """Write `update` together with the other updates that wait for the same object, and return after the write.

        Raises `Retry` if the previous write takes too long, or if the write fails in another caller's thread. A failure
        in this caller's thread is raised unchanged.
        """
        with self._changed:
            is_first = key not in self._pending
            batch = self._pending.setdefault(key, PendingBatch())
            batch.updates.append(update)
        if is_first:
            self._write_batch(key, batch, write_updates)
        else:
            _wait_for_batch(batch)

    def _write_batch(self, key: str, batch: PendingBatch[T], write_updates: WriteFunction[T]) -> None:
        try:
            with self._hold_key(key):
                write_updates(batch.updates)
        except BaseException as error:
            batch.done.set_exception(Retry(str(error)))
            raise
        batch.done.set_result(None)

    @contextmanager
    def _hold_key(self, key: str) -> Iterator[None]:
        """Wait until the previous write of `key` ends, then run the block as the next write.

        Updates that arrive after the wait go into a later write. Raises `Retry` if the wait takes too long.
        """
        with self._changed:
            try:
                is_free = self._changed.wait_for(lambda: key not in self._in_flight, get_seconds_left())
            finally:
                del self._pending[key]
            if not is_free:
                raise Retry(BUSY_MESSAGE)
            self._in_flight.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._in_flight.discard(key)
                self._changed.notify_all()


def _wait_for_batch(batch: PendingBatch[T]) -> None:
    try:
        batch.done.result(get_seconds_left())
    except TimeoutError:
        raise Retry(BUSY_MESSAGE) from None
