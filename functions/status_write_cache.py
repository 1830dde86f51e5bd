"""Cache of this process's latest status writes: a snapshot taken just before such a write still counts as current.

`evict` may take its snapshot of a NodeMaintenance while `status` writes the result of the previous pass. Compared by
resourceVersion alone, that snapshot is stale. It is still valid if this process made the only write since then, and if
the snapshot's pods are at least as new as the pods that the write described. Other processes' writes are not in this
cache, so `status` re-reads the cluster after them.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from functions.bounded_cache import Newest
from kube.resource_versions import is_as_new

KEPT = 1000
"""Maximum number of maintenances in the cache."""


class Write(NamedTuple):
    """One status write: the resourceVersions of the maintenance before and after it, and of the pods it describes."""

    before: str
    after: str
    pods: str


class OwnWrites:
    """The last status write of each maintenance, by uid. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes = Newest[str, Write](KEPT)

    def add(self, uid: str, write: Write) -> None:
        """Record a write whose pod state is at least as new as its node state.

        If the node state may be newer, `write.pods` must be "", and earlier snapshots then count as stale.
        """
        with self._lock:
            self._writes[uid] = write

    def lie_between(self, uid: str, looked: str, now: str, pods: str) -> bool:
        """Return whether a snapshot with the version `looked` still describes the maintenance with the version `now`.

        `pods` is the resourceVersion of the pods in the snapshot.
        """
        if looked == now:
            return True
        with self._lock:
            write = self._writes.get(uid)
        return write is not None and (write.before, write.after) == (looked, now) and is_as_new(pods, write.pods)
