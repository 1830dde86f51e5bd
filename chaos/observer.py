"""Watches a cluster and its audit log from separate threads, and passes every observation to the invariant checker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from chaos.invariant_checker import Watcher
from chaos.observations import MAINTENANCES, NODES, PODS, Blind, Observation, Sighting, evictions
from kube.client.list_watch import Change, Witness, follow, merged
from kube.client.sync_client import Cluster
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import NODES as NODES_PATH
from kube.paths import Object

WATCHED = ((NODES, NODES_PATH), (PODS, "/api/v1/pods"), (MAINTENANCES, MEDIK8S.path), (MAINTENANCES, KUBEVIRT.path))
LOOK_SECONDS, SYNC_SECONDS = 0.5, 30.0
SETTLED = 20.0
"""Seconds after which all observations of an instant have arrived, even if the API server was down in between."""


class Observer:
    """Observes a cluster while the block runs; each violation is printed at once and added to `violations`.

    Entering and leaving re-raise an error of an observer thread, since a dead observer would find no violations.
    Entering raises `TimeoutError` if the watches do not sync.
    """

    def __init__(self, kubeconfig: Path, log: Path, say: Callable[[str], None]) -> None:
        self.watcher, self.violations = Watcher(), list[str]()
        self._kubeconfig, self._log, self._say = kubeconfig, log, say
        self._position, self._rest = log.stat().st_size, b""
        self._lock, self._ending, self._synced = threading.Lock(), threading.Event(), threading.Semaphore(0)
        self._threads, self._works = ThreadPoolExecutor(2, "observer"), list[Future[None]]()

    def __enter__(self) -> Observer:
        self._works = [self._threads.submit(work) for work in (self._watch, self._read)]
        if not all(self._synced.acquire(timeout=SYNC_SECONDS) for _ in WATCHED):
            self._end()
            raise TimeoutError("the watches do not stand")
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        with self._lock:
            self._judge(time.time() + SETTLED)
            self._note(self.watcher.end())

    def _end(self) -> None:
        self._ending.set()
        self._threads.shutdown()
        for work in self._works:
            work.result()

    def take(self, seen: Observation) -> None:
        """Pass an observation to the invariant checker."""
        with self._lock:
            self.watcher.take(seen)

    def _judge(self, now: float) -> None:
        self._note(self.watcher.settle(now - SETTLED))

    def _note(self, found: list[str]) -> None:
        self.violations += found
        for violation in found:
            self._say(f"VIOLATION: {violation}")

    def _watch(self) -> None:
        with closing(Cluster(str(self._kubeconfig))) as cluster:
            cluster.run(self._follow(cluster))

    async def _follow(self, cluster: Cluster) -> None:
        sights = [Sight(room, self.take) for room, _ in WATCHED]
        streams = [self._stream(cluster, path, sight) for (_, path), sight in zip(WATCHED, sights, strict=True)]
        following = asyncio.ensure_future(self._take_all(streams, sights))
        while not self._ending.is_set() and not following.done():
            await asyncio.wait([following], timeout=LOOK_SECONDS)
        following.cancel()
        await asyncio.gather(following, return_exceptions=not following.done())

    def _stream(self, cluster: Cluster, path: str, sight: Sight) -> AsyncGenerator[Change, None]:
        return follow(cluster.api, path, keep=_kept, witness=sight)

    async def _take_all(self, streams: list[AsyncGenerator[Change, None]], sights: list[Sight]) -> None:
        async for number, change in merged(*streams):
            if change.kind == "SYNCED":
                self._synced.release()
            else:
                sights[number].see(Sighting(time.time(), WATCHED[number][0], change.object, change.kind == "DELETED"))

    def _read(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            self._read_on()
        self._read_on()

    def _read_on(self) -> None:
        with self._log.open("rb") as log:
            log.seek(self._position)
            whole, end, _ = log.read().rpartition(b"\n")
        self._position += len(whole) + len(end)
        found = list(evictions(whole.decode(errors="replace")))
        with self._lock:
            for eviction in found:
                self.watcher.take(eviction)
            self._judge(time.time())


class Sight(Witness):
    """Tracks the resourceVersions that a watch has covered, and reports a gap after each re-list."""

    def __init__(self, room: str, take: Callable[[Observation], None]) -> None:
        self._room, self._take = room, take
        self._last = self._before = 0
        self._since, self._is_blind = 0.0, True

    def see(self, sighting: Sighting) -> None:
        """Pass on an object from the watch."""
        self._last = max(self._last, sighting.version)
        self._take(sighting)

    def closed(self) -> None:
        """Record the start of a gap when the watch closes, unless a gap has started and nothing arrived since.

        The next changes come from a new watch without a gap, or from a list.
        """
        if self._last > self._before or not self._is_blind:
            self._before, self._since, self._is_blind = self._last, time.time(), True

    def listed(self) -> None:
        """Report the gap, since a list shows only the latest version of each object.

        The next close of the watch starts another gap, even if the list was empty.
        """
        self._take(Blind(self._room, self._before, self._last, self._since, time.time()))
        self._is_blind = False


def _kept(item: Object) -> Object:
    """Return only the fields that the invariant checks need."""
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "ownerReferences")
    metadata = {name: item["metadata"][name] for name in names if name in item["metadata"]}
    spec, status = item.get("spec") or {}, item.get("status") or {}
    return {
        "metadata": metadata,
        "spec": {name: spec[name] for name in ("nodeName", "unschedulable", "taints") if name in spec},
        "status": {"phase": status.get("phase", "")},
    }
