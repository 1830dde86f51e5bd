"""What this process wrote last of each status, so that a step which looked a moment before is believed all the same.

`evict` reads a maintenance while `status` writes what the look before has seen. By its version alone that reading is
outdated then. It is not, where nobody but this process has written since, and where the pods that the step has seen
are no older than those of that write. What is not known here, as to another replica, is read.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from functions.newest import Newest
from kube.resource_versions import is_as_new

KEPT = 1000
"""Maintenances whose last write is remembered."""


class Write(NamedTuple):
    """One write: the versions of the maintenance before and behind it, and of the pods that it tells of."""

    before: str
    after: str
    pods: str


class OwnWrites:
    """The last write of each maintenance, by its uid. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes = Newest[str, Write](KEPT)

    def add(self, uid: str, write: Write) -> None:
        """It was done, and what it tells of the node no newer than what it tells of the pods."""
        with self._lock:
            self._writes[uid] = write

    def lie_between(self, uid: str, looked: str, now: str, pods: str) -> bool:
        """Whether a look at the maintenance in one version holds for the one that it has now.

        In: the versions of the maintenance, and of the pods that were seen by that look.
        """
        if looked == now:
            return True
        with self._lock:
            write = self._writes.get(uid)
        return write is not None and (write.before, write.after) == (looked, now) and is_as_new(pods, write.pods)
