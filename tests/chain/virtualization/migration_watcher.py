"""Watcher that counts concurrent migrations, in total, per node and per VMI (DRN-8)."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from kube.client.list_watch import follow
from kube.client.sync_client import SyncClient
from kube.paths import Object
from kube.virtualization.vmis import MIGRATIONS_PATH, get_key, get_vmi_key, is_finished
from localcluster.waiting import run_until_set


class MigrationWatcher:
    """Watches all migrations, and counts how many of them run concurrently.

    Args:
        client: The API client.
        node_by_vmi: Map from VMI name to name of the node that the VMI leaves; needed for `max_concurrent_by_node`.
        waiting_phases: The phases in which a migration does not count as running.

    Attributes:
        max_concurrent: The maximum number of concurrent migrations.
        max_concurrent_by_node: Map from Node name to the maximum number of concurrent migrations from this node.
        first_seen_at: Map from VMI namespace and name to the time at which its first running migration was observed.
        migrations_by_vmi: Map from VMI name to the names of all its migrations.
        vmis_with_two_migrations: The VMIs that had more than one migration at the same time.
    """

    def __init__(
        self, client: SyncClient, node_by_vmi: Mapping[str, str] | None = None, waiting_phases: Collection[str] = ()
    ) -> None:
        self._waiting_phases = waiting_phases
        self._admin = client
        self._node_by_vmi = node_by_vmi or {}
        self._running: dict[tuple[str, str], tuple[str, str]] = {}
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self.max_concurrent = 0
        self.max_concurrent_by_node: Counter[str] = Counter()
        self.first_seen_at: dict[tuple[str, str], float] = {}
        self.migrations_by_vmi: defaultdict[str, set[str]] = defaultdict(set)
        self.vmis_with_two_migrations: set[tuple[str, str]] = set()

    def __enter__(self) -> MigrationWatcher:
        self._future = self._thread.submit(
            lambda: self._admin.run(run_until_set(self._stopping, self._watch_migrations()))
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.shutdown()
        self._future.result()  # `result` raises the exception with which the watcher has failed, if any.

    def _is_waiting(self, migration: Object) -> bool:
        return (migration.get("status") or {}).get("phase", "") in self._waiting_phases

    async def _watch_migrations(self) -> None:
        async with aclosing(follow(self._admin.api, MIGRATIONS_PATH)) as changes:
            async for change in changes:
                if change.change_type == "SYNCED":
                    continue
                self.migrations_by_vmi[get_vmi_key(change.object)[1]].add(change.object["metadata"]["name"])
                if change.change_type == "DELETED" or is_finished(change.object) or self._is_waiting(change.object):
                    self._running.pop(get_key(change.object), None)
                else:
                    self._running[get_key(change.object)] = get_vmi_key(change.object)
                    self.first_seen_at.setdefault(get_vmi_key(change.object), time.monotonic())
                self.max_concurrent = max(self.max_concurrent, len(self._running))
                self.max_concurrent_by_node |= Counter(
                    self._node_by_vmi.get(name, "") for _, name in self._running.values()
                )
                self.vmis_with_two_migrations |= {
                    vmi_key for vmi_key, count in Counter(self._running.values()).items() if count > 1
                }
