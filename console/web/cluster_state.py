"""Watches nodes and NodeMaintenances once for all users of the console, and provides their current state."""

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
"""How long the first request waits for the initial lists."""
RETRY_SECONDS = 2.0
"""Delay before the next attempt if the kinds cannot be watched or are not installed."""
CRD_CHECK_SECONDS = 10.0
"""Interval between checks whether CRDs were installed or removed, and whether the API server responds."""
STALE_AFTER_SECONDS = 20.0
"""Age of the last confirmation after which the state is shown as stale, because two checks have failed."""
STABLE_WATCH_SECONDS = 2.0
"""Duration after which an open watch counts as accepted; a rejected watch ends immediately."""
PUBLISH_SECONDS = 0.2
"""Minimum time between two published states: users perceive no more, and all open pages show the same states, so that
each change is rendered once for all of them."""
log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ClusterState:
    """The current state: nodes by name, maintenances oldest first, their API groups, and an increasing version.

    `stale_since` is the time (RFC 3339) at which the state was last confirmed, "" if it is current.
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
        """Return the rows of the list of nodes, computed once for all pages that show this state."""
        return build_rows(self.nodes, self.maintenances)

    def share(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the result of `build` with this key, computed once for all pages that show this state.

        `build` must depend only on the state and on the key, and must not call this method.
        """
        with self._lock:  # The other pages wait for the result, and do not compute another one.
            if key not in self._shared:
                self._shared[key] = build()
            result: T = self._shared[key]
            return result


class StreamHealth(StreamObserver):
    """The health of one kind's list and watch; `on_failure` is called with each failure."""

    def __init__(self, clock: Callable[[], float], on_failure: Callable[[ApiError], None]) -> None:
        self._clock, self._on_failure = clock, on_failure
        self._is_broken = True  # Until the list is read, the state comes from earlier watches.
        self._open_since: float | None = None

    def on_listed(self) -> None:
        """Record that the list was read."""
        self._is_broken = False

    def on_watch_opened(self) -> None:
        """Record that a watch was requested."""
        self._open_since = self._clock()

    def on_watch_closed(self) -> None:
        """Record that the watch ended."""
        self._open_since = None

    def on_failed(self, error: ApiError) -> None:
        """Record a failure: the state is unconfirmed until the list is read or a watch is stable."""
        self._is_broken = True
        self._on_failure(error)

    @property
    def is_healthy(self) -> bool:
        """Return whether the list was read and no failure followed, or a watch has been stable since the failure."""
        if self._is_broken and self._open_since is not None:
            self._is_broken = self._clock() - self._open_since < STABLE_WATCH_SECONDS
        return not self._is_broken


class DelayedCall:
    """Calls a function soon after each request, at most once per interval; requests in the meantime share a call.

    The first call follows immediately. All methods run on the event-loop thread.
    """

    def __init__(self, function: Callable[[], None], interval_seconds: float) -> None:
        self._function, self._interval = function, interval_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._next_call_at = 0.0

    def request(self) -> None:
        """Call the function now, or once the interval has passed."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._next_call_at, self._call)

    def close(self) -> None:
        """Make the outstanding call now, so that the last change is not lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._call()

    def _call(self) -> None:
        self._timer = None
        self._next_call_at = asyncio.get_running_loop().time() + self._interval
        self._function()


class ClusterWatcher:
    """A watcher of the cluster, which runs on the client's event-loop thread and wakes threads that wait for changes.

    Close it before the client. `clock` is a function like `time.monotonic`.
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
        """End the watches and close their connections."""
        self._client.run(self._stop_watch_task())

    async def _start_watch_task(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._watch_forever())

    async def _stop_watch_task(self) -> None:
        self._watch_task.cancel()
        await asyncio.gather(self._watch_task, return_exceptions=True)

    def get_state(self, timeout: float = FIRST_LIST_TIMEOUT_SECONDS) -> ClusterState:
        """Return the current state, after waiting for the initial lists. Raises the `ApiError` that prevents them."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.version > 0, timeout)
            if not self._state.version:
                raise self._error
            return self._state

    def get_age_seconds(self) -> float:
        """Return the seconds since the state was last confirmed."""
        return self._clock() - self._confirmed_clock

    def get_stale_since(self) -> str:
        """Return `ClusterState.stale_since` of the current state."""
        return self._state.stale_since

    def wait_for_newer_state(self, version: int, timeout: float) -> ClusterState | None:
        """Return the first state newer than `version`, or None if there is none within `timeout`."""
        return self.wait_for_state(lambda state: state.version > version, timeout)

    def wait_for_state(self, predicate: Callable[[ClusterState], bool], timeout: float) -> ClusterState | None:
        """Return the first state for which `predicate` returns true, or None if there is none within `timeout`."""
        with self._changed:
            return self._state if self._changed.wait_for(lambda: predicate(self._state), timeout) else None

    async def _watch_forever(self) -> None:
        """Watch all served API groups; restart when these change, or after an error."""
        while True:
            try:
                groups = await list_served_groups(self._client.api)
                await self._watch_groups(groups)
                continue
            except ApiError as error:
                self._error = error
            except OperationError as error:  # no CRD is installed
                self._error = Unavailable(0, str(error))
            self._update_staleness()
            log.warning("cannot watch nodes and maintenances: %s", self._error.message)
            await asyncio.sleep(RETRY_SECONDS)

    async def _watch_groups(self, groups: list[ApiGroup]) -> None:
        """Watch until the served API groups change. Raises the `ApiError` that ends the watches earlier."""
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
                self._mark_current()
            self._update_staleness()
            await asyncio.sleep(CRD_CHECK_SECONDS)

    async def _watch_objects(self, groups: list[ApiGroup]) -> None:
        """Apply every change; publish the state once all lists are read, then after each change that affects it."""
        nodes: dict[str, NodeFacts] = {}
        maintenances: dict[str, Object] = {}
        unsynced = set(range(len(groups) + 1))
        paths = (NODES_PATH, *(group.path for group in groups))
        self._stream_health = [StreamHealth(self._clock, self._set_error) for _ in paths]
        streams = [
            follow(self._client.api, path, observer=health)
            for path, health in zip(paths, self._stream_health, strict=True)
        ]
        publisher = DelayedCall(lambda: self._publish_state(nodes, maintenances, groups), PUBLISH_SECONDS)
        with closing(publisher):
            async with aclosing(merge_streams(*streams)) as changes:
                async for stream_index, change in changes:
                    if change.change_type == "SYNCED":
                        unsynced.discard(stream_index)
                        if not unsynced:
                            self._mark_current()
                    elif stream_index > 0:
                        _apply_maintenance_change(maintenances, change)
                    elif not _apply_node_change(nodes, change):
                        continue
                    if not unsynced:
                        publisher.request()

    def _set_error(self, error: ApiError) -> None:
        self._error = error

    def _mark_current(self) -> None:
        """Record that the state is current now."""
        self._confirmed_clock, self._confirmed_at = self._clock(), datetime.now(timezone.utc)

    def _update_staleness(self) -> None:
        """Publish the state when it becomes stale, and when it becomes current again."""
        stale = format_time(self._confirmed_at) if self.get_age_seconds() > STALE_AFTER_SECONDS else ""
        with self._changed:
            if self._state.version and self._state.stale_since != stale:
                self._state = replace(self._state, version=self._next_version(), stale_since=stale)
                self._changed.notify_all()

    def _next_version(self) -> int:
        """Return a clock-based version; it exceeds those of earlier processes, which browsers may still show."""
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
    """Apply a change to a node, and return whether it affects the state; a node heartbeat does not."""
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
