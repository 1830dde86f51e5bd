"""Cache of this process's latest status writes: a snapshot taken just before such a write still counts as current.

`evict` may take its snapshot of a NodeMaintenance while `status` writes the result of the previous pass. Compared by
resourceVersion alone, that snapshot is stale. It is still valid if this process made the only write since then, and if
the snapshot's pods are at least as new as the pods that the write described. Other processes' writes are not in this
cache, so `status` re-reads the cluster after them.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from functions.bounded_cache import BoundedCache
from kube.resource_versions import is_at_least_as_new

MAX_CACHED_WRITES = 1000
"""Maximum number of maintenances in the cache."""


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
