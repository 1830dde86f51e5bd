"""Watches all nodes during a run and records which of them are released (MUT-44)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from kube.client.list_watch import follow
from kube.client.sync_client import Cluster
from kube.mutex.node_labels import is_released, run_of
from kube.nodes import NODES
from kube.paths import Object
from tests.waiting import until_set


class Watcher:
    """Watcher of all nodes; a released node had rule labels, has none now, and still has the run's label.

    Attributes:
        together: The sets of nodes that were released at the same time.
        released: The names of all nodes that were released, in order.
    """

    def __init__(self, admin: Cluster) -> None:
        self._admin = admin
        self._open: set[str] = set()
        self._gated: set[str] = set()
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self.together: list[frozenset[str]] = []
        self.released: list[str] = []

    def __enter__(self) -> Watcher:
        self._seeing = self._thread.submit(self._work)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.shutdown()
        self._seeing.result()  # raises the watcher's error: a watcher that failed has not observed all releases

    def _work(self) -> None:
        self._admin.run(until_set(self._stopping, self._follow()))

    async def _follow(self) -> None:
        async with aclosing(follow(self._admin.api, NODES)) as changes:
            async for change in changes:
                if change.kind != "SYNCED":
                    self._see(change.object, gone=change.kind == "DELETED")

    def _see(self, node: Object, *, gone: bool) -> None:
        name = node["metadata"]["name"]
        if not is_released(node):
            self._gated.add(name)
        is_open = bool(run_of(node)) and is_released(node) and name in self._gated and not gone
        if is_open and name not in self._open:
            self.released.append(name)
        self._open = self._open | {name} if is_open else self._open - {name}
        if not run_of(node):
            self._gated.discard(name)
        if len(self._open) > 1:
            self.together.append(frozenset(self._open))
