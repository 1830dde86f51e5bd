"""Watches nodes and NodeMaintenances once for all users of the console, and provides the current state to the pages."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, TypeVar

from console.operations.errors import OperationError
from console.operations.maintenance_actions import list_served_groups
from console.web.node_rows import NodeFacts, Row, build_rows
from kube.client.api_errors import ApiError, Unavailable
from kube.client.list_watch import Change, StreamObserver, follow, merge_streams
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import ApiGroup
from kube.nodes import NODES_PATH
from kube.paths import Object
from kube.times import format_time

FIRST_LIST_TIMEOUT_SECONDS = 10.0
"""Seconds for which a request waits for the initial lists."""
RETRY_SECONDS = 2.0
"""Delay in seconds before a retry if nodes and NodeMaintenances cannot be watched, or no CRD is installed."""
CRD_CHECK_SECONDS = 10.0
"""Interval in seconds of checks whether CRDs were installed or removed, and whether the API server responds."""
STALE_AFTER_SECONDS = 20.0
"""Seconds without confirmation after which the state is shown as stale; two checks have then failed."""
STABLE_WATCH_SECONDS = 2.0
"""Seconds after which an open watch counts as accepted; a rejected watch ends immediately."""
PUBLISH_SECONDS = 0.2
"""Minimum seconds between two published states.

Users do not perceive faster updates. All open pages show the published states, so each state is rendered only once.
"""
log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ClusterState:
    """A published state of the cluster: nodes by name, maintenances (oldest first), and the served API groups.

    `version` increases with each state. `stale_since` is "" for a current state, or else the time (RFC 3339) at which
    the state was last confirmed.
    """

    version: int = 0
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    maintenances: tuple[Object, ...] = ()
    groups: tuple[ApiGroup, ...] = ()
    stale_since: str = ""
    _shared: dict[Hashable, Any] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @cached_property
    def rows(self) -> list[Row]:
        """Return the rows of the node list, computed once for all pages that show this state."""
        return build_rows(self.nodes, self.maintenances)

    def share(self, key: Hashable, build: Callable[[], T]) -> T:
        """Call `build` once per key, and return its result to all pages that show this state.

        The result of `build` must depend only on the state and the key. `build` must not call this method.
        """
        with self._lock:  # Other pages wait for the result instead of computing it again.
            if key not in self._shared:
                self._shared[key] = build()
            result: T = self._shared[key]
            return result


class StreamHealth(StreamObserver):
    """Observer that tracks the health of one kind's list and watch, and passes each API error to `on_failure`."""

    def __init__(self, clock: Callable[[], float], on_failure: Callable[[ApiError], None]) -> None:
        self._clock, self._on_failure = clock, on_failure
        self._is_broken = True  # Until the initial list is read, the state comes from earlier watches.
        self._open_since: float | None = None

    def on_listed(self) -> None:
        """Record that the list request succeeded."""
        self._is_broken = False

    def on_watch_opened(self) -> None:
        """Record the time at which the watch request was sent."""
        self._open_since = self._clock()

    def on_watch_closed(self) -> None:
        """Record that the watch has ended."""
        self._open_since = None

    def on_failed(self, error: ApiError) -> None:
        """Record a failed request: the stream is unhealthy until a list request succeeds or a watch is stable."""
        self._is_broken = True
        self._on_failure(error)

    @property
    def is_healthy(self) -> bool:
        """Return whether the last list request succeeded, or a watch has been stable since the last failure."""
        if self._is_broken and self._open_since is not None:
            self._is_broken = self._clock() - self._open_since < STABLE_WATCH_SECONDS
        return not self._is_broken


class RateLimitedCall:
    """Rate-limited call of a function: calls it after `request`, at most once per interval, and coalesces requests.

    All methods must run in the event loop's thread.
    """

    def __init__(self, function: Callable[[], None], interval_seconds: float) -> None:
        self._function, self._interval = function, interval_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._next_call_at = 0.0

    def request(self) -> None:
        """Schedule a call of the function: immediately, or when the interval since the last call has passed."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._next_call_at, self._call)

    def close(self) -> None:
        """Make a scheduled call immediately, so that the last change is not lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._call()

    def _call(self) -> None:
        self._timer = None
        self._next_call_at = asyncio.get_running_loop().time() + self._interval
        self._function()


class ClusterWatcher:
    """Watcher of nodes and NodeMaintenances in the API client's event loop; other threads can wait for new states.

    It must be closed before the API client. `clock` is a function like `time.monotonic`.
    """

    def __init__(self, client: SyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._confirmed_clock, self._confirmed_at = clock(), datetime.now(timezone.utc)
        self._stream_health: list[StreamHealth] = []
        self._changed = threading.Condition()
        self._state = ClusterState()
        self._error: ApiError = Unavailable(0, "nodes and maintenances have not been read yet")
        self._watch_task = client.run(self._start_watch_task())

    def close(self) -> None:
        """Stop the watches and close their connections."""
        self._client.run(self._stop_watch_task())

    async def _start_watch_task(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._watch_forever())

    async def _stop_watch_task(self) -> None:
        self._watch_task.cancel()
        await asyncio.gather(self._watch_task, return_exceptions=True)

    def get_state(self, timeout: float = FIRST_LIST_TIMEOUT_SECONDS) -> ClusterState:
        """Wait for the initial lists, and return the current state.

        Raises the last `ApiError` if the lists are not complete after `timeout` seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state.version > 0, timeout)
            if not self._state.version:
                raise self._error
            return self._state

    def get_age_seconds(self) -> float:
        """Return the number of seconds since the state was last confirmed."""
        return self._clock() - self._confirmed_clock

    def get_stale_since(self) -> str:
        """Return `ClusterState.stale_since` of the current state."""
        return self._state.stale_since

    def wait_for_newer_state(self, version: int, timeout: float) -> ClusterState | None:
        """Wait for a state that is newer than `version`, and return it, or None after `timeout` seconds."""
        return self.wait_for_state(lambda state: state.version > version, timeout)

    def wait_for_state(self, predicate: Callable[[ClusterState], bool], timeout: float) -> ClusterState | None:
        """Wait for a state for which `predicate` returns true, and return it, or None after `timeout` seconds."""
        with self._changed:
            return self._state if self._changed.wait_for(lambda: predicate(self._state), timeout) else None

    async def _watch_forever(self) -> None:
        """Watch nodes and NodeMaintenances; restart after an error, and when the served API groups have changed."""
        while True:
            try:
                groups = await list_served_groups(self._client.api)
                await self._watch_groups(groups)
                continue
            except ApiError as error:
                self._error = error
            except OperationError as error:  # No NodeMaintenance CRD is installed.
                self._error = Unavailable(0, str(error))
            self._update_staleness()
            log.warning("cannot watch nodes and maintenances: %s", self._error.message)
            await asyncio.sleep(RETRY_SECONDS)

    async def _watch_groups(self, groups: list[ApiGroup]) -> None:
        """Watch until the served API groups change. Raises the `ApiError` of a failed watch."""
        tasks = {
            asyncio.ensure_future(self._watch_objects(groups)),
            asyncio.ensure_future(self._wait_for_group_change(groups)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_group_change(self, groups: list[ApiGroup]) -> None:
        while await list_served_groups(self._client.api) == groups:
            if all(health.is_healthy for health in self._stream_health):
                self._mark_confirmed()
            self._update_staleness()
            await asyncio.sleep(CRD_CHECK_SECONDS)

    async def _watch_objects(self, groups: list[ApiGroup]) -> None:
        """Apply all changes; publish the state after all initial lists, and then after each change that affects it."""
        nodes: dict[str, NodeFacts] = {}
        maintenances: dict[str, Object] = {}
        unsynced = set(range(len(groups) + 1))
        paths = (NODES_PATH, *(group.path for group in groups))
        self._stream_health = [StreamHealth(self._clock, self._set_error) for _ in paths]
        streams = [
            follow(self._client.api, path, observer=health)
            for path, health in zip(paths, self._stream_health, strict=True)
        ]
        publisher = RateLimitedCall(lambda: self._publish_state(nodes, maintenances, groups), PUBLISH_SECONDS)
        with closing(publisher):
            async with aclosing(merge_streams(*streams)) as changes:
                async for stream_index, change in changes:
                    if change.change_type == "SYNCED":
                        unsynced.discard(stream_index)
                        if not unsynced:
                            self._mark_confirmed()
                    elif stream_index > 0:
                        _apply_maintenance_change(maintenances, change)
                    elif not _apply_node_change(nodes, change):
                        continue
                    if not unsynced:
                        publisher.request()

    def _set_error(self, error: ApiError) -> None:
        self._error = error

    def _mark_confirmed(self) -> None:
        """Record that the state was confirmed just now."""
        self._confirmed_clock, self._confirmed_at = self._clock(), datetime.now(timezone.utc)

    def _update_staleness(self) -> None:
        """Publish a new state if the current one has become stale, or is confirmed again."""
        stale = format_time(self._confirmed_at) if self.get_age_seconds() > STALE_AFTER_SECONDS else ""
        with self._changed:
            if self._state.version and self._state.stale_since != stale:
                self._state = replace(self._state, version=self._next_version(), stale_since=stale)
                self._changed.notify_all()

    def _next_version(self) -> int:
        """Return the next version, which is based on the clock.

        It is thus greater than the versions of earlier processes, which open pages may still show.
        """
        return max(self._state.version + 1, int(time.time() * 1000))

    def _publish_state(
        self, nodes: dict[str, NodeFacts], maintenances_by_uid: dict[str, Object], groups: list[ApiGroup]
    ) -> None:
        maintenances = sorted(maintenances_by_uid.values(), key=lambda item: item["metadata"]["creationTimestamp"])
        with self._changed:
            stale = self._state.stale_since if self.get_age_seconds() > STALE_AFTER_SECONDS else ""
            self._state = ClusterState(self._next_version(), dict(nodes), tuple(maintenances), tuple(groups), stale)
            self._changed.notify_all()


def _apply_node_change(nodes: dict[str, NodeFacts], change: Change) -> bool:
    """Apply a change of a node, and return whether it affects the state; a node's heartbeat does not."""
    facts = NodeFacts.from_node(change.object)
    if change.change_type == "DELETED":
        return nodes.pop(facts.name, None) is not None
    previous, nodes[facts.name] = nodes.get(facts.name), facts
    return previous != facts


def _apply_maintenance_change(maintenances: dict[str, Object], change: Change) -> None:
    uid = change.object["metadata"]["uid"]
    if change.change_type == "DELETED":
        maintenances.pop(uid, None)
    else:
        maintenances[uid] = change.object
