"""Batches this process's status writes, and remembers the latest one of each maintenance.

Updates from events that arrive during a write share the next write: concurrent writes would conflict, and each conflict
requires another read. No update is dropped: each event is answered only after its update is written, and the broker
redelivers the event if the write fails.

A snapshot taken just before a status write still counts as current. `evict` may take its snapshot of a NodeMaintenance
while `status` writes the result of the previous pass. Compared by resourceVersion alone, that snapshot is stale. It is
still valid if this process made the only write since then, and if the snapshot's pods are at least as new as the pods
that the write described. Other processes' writes are not in the cache, so `status` re-reads the cluster after them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from functions.bounded_cache import BoundedCache
from functions.failures import Retry
from kube.client.deadline import get_seconds_left
from kube.resource_versions import is_at_least_as_new

T = TypeVar("T")
WriteFunction = Callable[[Sequence[T]], None]
BUSY_MESSAGE = "the previous write of the same object is still in progress"
MAX_CACHED_WRITES = 1000
"""Maximum number of maintenances in the cache."""


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


class StatusWrite(NamedTuple):
    """One status write: the resourceVersions of the maintenance before and after it, and of the pods it describes."""

    version_before: str
    version_after: str
    pods_version: str


class StatusWriteCache:
    """The last status write of each maintenance, by uid. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes = BoundedCache[str, StatusWrite](MAX_CACHED_WRITES)

    def record(self, uid: str, write: StatusWrite) -> None:
        """Record a write whose pod state is at least as new as its node state.

        If the node state may be newer, `write.pods_version` must be "", and earlier snapshots then count as stale.
        """
        with self._lock:
            self._writes[uid] = write

    def is_current(self, uid: str, snapshot_version: str, current_version: str, pods_version: str) -> bool:
        """Return whether a snapshot of the maintenance at `snapshot_version` still describes it at `current_version`.

        `pods_version` is the resourceVersion of the pods in the snapshot.
        """
        if snapshot_version == current_version:
            return True
        with self._lock:
            write = self._writes.get(uid)
        return (
            write is not None
            and (write.version_before, write.version_after) == (snapshot_version, current_version)
            and is_at_least_as_new(pods_version, write.pods_version)
        )
