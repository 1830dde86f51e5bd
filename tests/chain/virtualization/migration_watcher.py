"""Watches all migrations: how many run concurrently, and whether a VMI has two at the same time (DRN-8)."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from kube.client.list_watch import follow
from kube.client.sync_client import Cluster
from kube.paths import Object
from kube.virtualization.vmis import MIGRATIONS, is_finished, key, vmi_of
from tests.waiting import until_set


class Watcher:
    """Watcher of all migrations.

    Args:
        admin: The API client.
        homes: VMI name → the node that it leaves; needed for `most_from`.
        held_back: The phases of migrations that wait and do not count as running.

    Attributes:
        most: The maximum of concurrent migrations.
        most_from: Node → the maximum of concurrent migrations from it.
        seen: VMI → the time at which its first running migration was seen.
        made: VMI name → the names of all its migrations.
        doubled: The VMIs that had two concurrent migrations.
    """

    def __init__(self, admin: Cluster, homes: Mapping[str, str] | None = None, held_back: Collection[str] = ()) -> None:
        self._held_back = held_back
        self._admin = admin
        self._homes = homes or {}
        self._active: dict[tuple[str, str], tuple[str, str]] = {}
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self.most = 0
        self.most_from: Counter[str] = Counter()
        self.seen: dict[tuple[str, str], float] = {}
        self.made: defaultdict[str, set[str]] = defaultdict(set)
        self.doubled: set[tuple[str, str]] = set()

    def __enter__(self) -> Watcher:
        self._seeing = self._thread.submit(lambda: self._admin.run(until_set(self._stopping, self._see())))
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.shutdown()
        self._seeing.result()  # raises the watcher's error: a watcher that failed has not observed all migrations

    def _waits(self, migration: Object) -> bool:
        return (migration.get("status") or {}).get("phase", "") in self._held_back

    async def _see(self) -> None:
        async with aclosing(follow(self._admin.api, MIGRATIONS)) as changes:
            async for change in changes:
                if change.kind == "SYNCED":
                    continue
                self.made[vmi_of(change.object)[1]].add(change.object["metadata"]["name"])
                if change.kind == "DELETED" or is_finished(change.object) or self._waits(change.object):
                    self._active.pop(key(change.object), None)
                else:
                    self._active[key(change.object)] = vmi_of(change.object)
                    self.seen.setdefault(vmi_of(change.object), time.monotonic())
                self.most = max(self.most, len(self._active))
                self.most_from |= Counter(self._homes.get(name, "") for _, name in self._active.values())
                self.doubled |= {one for one, count in Counter(self._active.values()).items() if count > 1}
