"""Records which nodes a run releases, and which nodes are released at the same time (MUT-44)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from kube.client.list_watch import follow
from kube.client.sync_client import SyncClient
from kube.mutex.nodes import get_run_id, is_released
from kube.nodes import NODES_PATH
from kube.paths import Object
from localcluster.waiting import run_until_set


class ReleaseWatcher:
    """Watches all nodes, and records the released nodes.

    A released node once had rule labels, no longer has any, and still has the run's label.

    Attributes:
        concurrently_released_nodes: Each set of two or more nodes that were released at the same time.
        released: The names of all released nodes, in the order of their release.
    """

    def __init__(self, client: SyncClient) -> None:
        self._admin = client
        self._released_now: set[str] = set()
        self._previously_labelled: set[str] = set()
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self.concurrently_released_nodes: list[frozenset[str]] = []
        self.released: list[str] = []

    def __enter__(self) -> ReleaseWatcher:
        self._future = self._thread.submit(self._run_until_stopped)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.shutdown()
        self._future.result()  # This raises the watcher thread's error, if it failed.

    def _run_until_stopped(self) -> None:
        self._admin.run(run_until_set(self._stopping, self._watch_nodes()))

    async def _watch_nodes(self) -> None:
        async with aclosing(follow(self._admin.api, NODES_PATH)) as changes:
            async for change in changes:
                if change.change_type != "SYNCED":
                    self._record_node(change.object, is_deleted=change.change_type == "DELETED")

    def _record_node(self, node: Object, *, is_deleted: bool) -> None:
        name = node["metadata"]["name"]
        if not is_released(node):
            self._previously_labelled.add(name)
        is_released_now = (
            bool(get_run_id(node)) and is_released(node) and name in self._previously_labelled and not is_deleted
        )
        if is_released_now and name not in self._released_now:
            self.released.append(name)
        self._released_now = self._released_now | {name} if is_released_now else self._released_now - {name}
        if not get_run_id(node):
            self._previously_labelled.discard(name)
        if len(self._released_now) > 1:
            self.concurrently_released_nodes.append(frozenset(self._released_now))
