"""The current nodes and NodeMaintenances, watched once for all users of the console."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from console.operations.errors import OperationError
from console.operations.maintenance_watch import served_groups
from console.web.node_rows import NodeFacts
from kube.client.api_errors import ApiError, Unavailable
from kube.client.list_watch import Change, Witness, follow, merged
from kube.client.sync_client import Cluster
from kube.maintenance.groups import Group
from kube.nodes import NODES
from kube.paths import Object
from kube.times import timestamp

FIRST_SECONDS = 10.0
"""How long the first request waits for the initial lists."""
AGAIN_SECONDS = 2.0
"""Delay before the next attempt if the kinds cannot be watched or are not installed."""
CHECK_SECONDS = 10.0
"""Interval of checks whether CRDs were installed or removed, and whether the API server answers."""
STALE_SECONDS = 20.0
"""Maximum age of the last confirmation; later the state is shown as stale, because two checks have failed."""
STEADY_SECONDS = 2.0
"""A watch that has lasted this long was accepted; a watch that is refused ends immediately."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """The current state: nodes by name, maintenances oldest first, their API groups, and an increasing version.

    `stale` is the time (RFC 3339) at which the state was last confirmed, "" if it is current.
    """

    version: int = 0
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    maintenances: tuple[Object, ...] = ()
    groups: tuple[Group, ...] = ()
    stale: str = ""


class Pulse(Witness):
    """The health of one kind's list and watch; `told` is called with each failure."""

    def __init__(self, clock: Callable[[], float], told: Callable[[ApiError], None]) -> None:
        self._clock, self._told = clock, told
        self._broken = True  # until its list is read: the state comes from earlier watches
        self._open_since: float | None = None

    def listed(self) -> None:
        """Record that the list was read."""
        self._broken = False

    def opened(self) -> None:
        """Record that a watch was requested."""
        self._open_since = self._clock()

    def closed(self) -> None:
        """Record that the watch ended."""
        self._open_since = None

    def failed(self, error: ApiError) -> None:
        """Record a failure: the state is unconfirmed until the list is read or a watch is steady."""
        self._broken = True
        self._told(error)

    @property
    def is_steady(self) -> bool:
        """Return whether the list was read and nothing has failed since, or a watch has lasted since the failure."""
        if self._broken and self._open_since is not None:
            self._broken = self._clock() - self._open_since < STEADY_SECONDS
        return not self._broken


class Live:
    """A watcher of the cluster on the client's loop thread, which wakes waiting threads; close it before the client.

    `clock` is a function like `time.monotonic`.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._confirmed, self._confirmed_at = clock(), datetime.now(timezone.utc)
        self._pulses: list[Pulse] = []
        self._changed = threading.Condition()
        self._state = State()
        self._error: ApiError = Unavailable(0, "nodes and maintenances are not read yet")
        self._following = cluster.run(self._begin())

    def close(self) -> None:
        """End the watches and close their connections."""
        self._cluster.run(self._end())

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._follow_always())

    async def _end(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    def now(self, seconds: float = FIRST_SECONDS) -> State:
        """Return the current state, after waiting for the initial lists. Raises the `ApiError` that prevents them."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.version > 0, seconds)
            if not self._state.version:
                raise self._error
            return self._state

    def age(self) -> float:
        """Return the seconds since the state was last confirmed."""
        return self._clock() - self._confirmed

    def stale_since(self) -> str:
        """Return `State.stale` of the current state."""
        return self._state.stale

    def after(self, version: int, seconds: float) -> State | None:
        """Return the first state newer than `version`, or None if there is none within `seconds`."""
        return self.when(lambda state: state.version > version, seconds)

    def when(self, holds: Callable[[State], bool], seconds: float) -> State | None:
        """Return the first state for which `holds` returns true, or None if there is none within `seconds`."""
        with self._changed:
            return self._state if self._changed.wait_for(lambda: holds(self._state), seconds) else None

    async def _follow_always(self) -> None:
        """Watch all served API groups; restart when these change, or after an error."""
        while True:
            try:
                groups = await served_groups(self._cluster.api)
                await self._follow_until_other(groups)
                continue
            except ApiError as error:
                self._error = error
            except OperationError as error:  # no CRD is installed
                self._error = Unavailable(0, str(error))
            self._note_age()
            log.warning("nodes and maintenances cannot be watched: %s", self._error.message)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _follow_until_other(self, groups: list[Group]) -> None:
        """Watch until the served API groups change. Raises the `ApiError` that ends the watches earlier."""
        tasks = {asyncio.ensure_future(self._follow(groups)), asyncio.ensure_future(self._until_other(groups))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_other(self, groups: list[Group]) -> None:
        while await served_groups(self._cluster.api) == groups:
            if all(pulse.is_steady for pulse in self._pulses):
                self._confirm()
            self._note_age()
            await asyncio.sleep(CHECK_SECONDS)

    async def _follow(self, groups: list[Group]) -> None:
        """Apply every change; publish the state once all lists are read, then after each change that affects it."""
        nodes: dict[str, NodeFacts] = {}
        items: dict[str, Object] = {}
        unread = set(range(len(groups) + 1))
        paths = (NODES, *(group.path for group in groups))
        self._pulses = [Pulse(self._clock, self._note_error) for _ in paths]
        streams = [
            follow(self._cluster.api, path, witness=pulse) for path, pulse in zip(paths, self._pulses, strict=True)
        ]
        async with aclosing(merged(*streams)) as changes:
            async for number, change in changes:
                if change.kind == "SYNCED":
                    unread.discard(number)
                    differs = True
                    if not unread:
                        self._confirm()
                else:
                    differs = _take_node(nodes, change) if number == 0 else _take_item(items, change)
                if differs and not unread:
                    self._publish(nodes, items, groups)

    def _note_error(self, error: ApiError) -> None:
        self._error = error

    def _confirm(self) -> None:
        """Record that the state is current now."""
        self._confirmed, self._confirmed_at = self._clock(), datetime.now(timezone.utc)

    def _note_age(self) -> None:
        """Publish a state when it becomes stale, and when it is current again."""
        stale = timestamp(self._confirmed_at) if self.age() > STALE_SECONDS else ""
        with self._changed:
            if self._state.version and self._state.stale != stale:
                self._state = replace(self._state, version=self._next_version(), stale=stale)
                self._changed.notify_all()

    def _next_version(self) -> int:
        """Return a version from the clock, greater than that of an earlier process, which a browser may still show."""
        return max(self._state.version + 1, int(time.time() * 1000))

    def _publish(self, nodes: dict[str, NodeFacts], items: dict[str, Object], groups: list[Group]) -> None:
        maintenances = tuple(sorted(items.values(), key=lambda item: item["metadata"]["creationTimestamp"]))
        with self._changed:
            stale = self._state.stale if self.age() > STALE_SECONDS else ""
            self._state = State(self._next_version(), dict(nodes), maintenances, tuple(groups), stale)
            self._changed.notify_all()


def _take_node(nodes: dict[str, NodeFacts], change: Change) -> bool:
    """Apply the change of a node, and return whether it affects the state; a node's heartbeat does not."""
    facts = NodeFacts.of(change.object)
    if change.kind == "DELETED":
        return nodes.pop(facts.name, None) is not None
    known, nodes[facts.name] = nodes.get(facts.name), facts
    return known != facts


def _take_item(items: dict[str, Object], change: Change) -> bool:
    uid = change.object["metadata"]["uid"]
    if change.kind == "DELETED":
        items.pop(uid, None)
    else:
        items[uid] = change.object
    return True
