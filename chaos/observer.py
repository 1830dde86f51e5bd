"""Watches a cluster and its audit log in separate threads, and passes all observations to the invariant checker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from chaos.audit_requests import parse_requests
from chaos.invariant_checker import (
    MAINTENANCES,
    NODES,
    PODS,
    InvariantChecker,
    ObjectObservation,
    Observation,
    WatchGap,
)
from kube.client.list_watch import Change, StreamObserver, follow, merge_streams
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import NODES_PATH
from kube.paths import Object

WATCHED_COLLECTIONS = (
    (NODES, NODES_PATH),
    (PODS, "/api/v1/pods"),
    (MAINTENANCES, MEDIK8S.path),
    (MAINTENANCES, KUBEVIRT.path),
)
POLL_SECONDS, SYNC_TIMEOUT_SECONDS = 0.5, 30.0
SETTLE_SECONDS = 60.0
"""Seconds after which all observations of one point in time have arrived, even after a late reconnection of a watch."""


class ClusterObserver:
    """Observes a cluster during the `with` block; prints each violation immediately, and adds it to `violations`.

    Entering and leaving the block re-raise the error of a failed observer thread, because that thread would not find
    violations. Entering the block raises `TimeoutError` if the watches do not sync.
    """

    def __init__(self, kubeconfig: Path, audit_log: Path, report: Callable[[str], None]) -> None:
        self.checker, self.violations = InvariantChecker(), list[str]()
        self._kubeconfig, self._audit_log, self._report = kubeconfig, audit_log, report
        self._position, self._rest = audit_log.stat().st_size, b""
        self._lock, self._stopping, self._synced = threading.Lock(), threading.Event(), threading.Semaphore(0)
        self._threads, self._futures = ThreadPoolExecutor(2, "observer"), list[Future[None]]()

    def __enter__(self) -> ClusterObserver:
        self._futures = [self._threads.submit(target) for target in (self._run_watches, self._read_audit_log)]
        if not all(self._synced.acquire(timeout=SYNC_TIMEOUT_SECONDS) for _ in WATCHED_COLLECTIONS):
            self._stop_threads()
            raise TimeoutError(f"watches did not sync within {SYNC_TIMEOUT_SECONDS:.0f} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_threads()
        with self._lock:
            self._run_checks(time.time() + SETTLE_SECONDS)
            self._report_violations(self.checker.check_totals())

    def _stop_threads(self) -> None:
        self._stopping.set()
        self._threads.shutdown()
        for future in self._futures:
            future.result()

    def record(self, observation: Observation) -> None:
        """Pass an observation to the invariant checker."""
        with self._lock:
            self.checker.record(observation)

    def _run_checks(self, now: float) -> None:
        self._report_violations(self.checker.check_until(now - SETTLE_SECONDS))

    def _report_violations(self, violations: list[str]) -> None:
        self.violations += violations
        for violation in violations:
            self._report(f"VIOLATION: {violation}")

    def _run_watches(self) -> None:
        with closing(SyncClient(str(self._kubeconfig))) as client:
            client.run(self._watch_collections(client))

    async def _watch_collections(self, client: SyncClient) -> None:
        detectors = [GapDetector(collection, self.record) for collection, _ in WATCHED_COLLECTIONS]
        streams = [
            self._open_stream(client, path, detector)
            for (_, path), detector in zip(WATCHED_COLLECTIONS, detectors, strict=True)
        ]
        following = asyncio.ensure_future(self._record_changes(streams, detectors))
        while not self._stopping.is_set() and not following.done():
            await asyncio.wait([following], timeout=POLL_SECONDS)
        following.cancel()
        await asyncio.gather(following, return_exceptions=not following.done())

    def _open_stream(self, client: SyncClient, path: str, detector: GapDetector) -> AsyncGenerator[Change, None]:
        return follow(client.api, path, transform=_strip_object, observer=detector)

    async def _record_changes(self, streams: list[AsyncGenerator[Change, None]], detectors: list[GapDetector]) -> None:
        async for stream_index, change in merge_streams(*streams):
            if change.change_type == "SYNCED":
                self._synced.release()
            else:
                detectors[stream_index].record_object(
                    ObjectObservation(
                        time.time(),
                        WATCHED_COLLECTIONS[stream_index][0],
                        change.object,
                        change.change_type == "DELETED",
                    )
                )

    def _read_audit_log(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            self._read_new_entries()
        self._read_new_entries()

    def _read_new_entries(self) -> None:
        with self._audit_log.open("rb") as log:
            log.seek(self._position)
            complete_lines, newline, _ = log.read().rpartition(b"\n")
        self._position += len(complete_lines) + len(newline)
        requests = list(parse_requests(complete_lines.decode(errors="replace")))
        with self._lock:
            for request in requests:
                self.checker.record(request)
            self._run_checks(time.time())


class GapDetector(StreamObserver):
    """Tracks the resourceVersions that a watch has covered, and reports a gap after each new list."""

    def __init__(self, collection: str, record: Callable[[Observation], None]) -> None:
        self._collection, self._record = collection, record
        self._last_version = self._version_before_gap = 0
        self._gap_started_at, self._is_in_gap = 0.0, True

    def record_object(self, observation: ObjectObservation) -> None:
        """Pass an object from the watch to the invariant checker, and remember its resourceVersion."""
        self._last_version = max(self._last_version, observation.version)
        self._record(observation)

    def on_watch_closed(self) -> None:
        """Record the start of a gap when the watch closes, unless a gap has already started without a change since.

        The next changes come from a new watch that continues without a gap, or from a list.
        """
        if self._last_version > self._version_before_gap or not self._is_in_gap:
            self._version_before_gap, self._gap_started_at, self._is_in_gap = self._last_version, time.time(), True

    def on_listed(self) -> None:
        """Report the gap since the last change, because a list contains only the latest version of each object.

        When the watch closes the next time, a new gap starts, even if the list was empty.
        """
        self._record(
            WatchGap(self._collection, self._version_before_gap, self._last_version, self._gap_started_at, time.time())
        )
        self._is_in_gap = False


def _strip_object(obj: Object) -> Object:
    """Return only the fields that the invariant checker needs."""
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "ownerReferences")
    metadata = {name: obj["metadata"][name] for name in names if name in obj["metadata"]}
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    conditions = [item for item in status.get("conditions") or [] if item["type"] == "Ready"]
    return {
        "metadata": metadata,
        "spec": {name: spec[name] for name in ("nodeName", "unschedulable", "taints", "drain") if name in spec},
        "status": {"phase": status.get("phase", ""), "escalation": status.get("escalation"), "conditions": conditions},
    }
