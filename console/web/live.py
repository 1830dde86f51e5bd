"""Nodes and NodeMaintenances as they are now, followed once for all who look at the console."""

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
from console.web.rows import NodeFacts
from kube.door.api_errors import ApiError, Unavailable
from kube.door.list_watch import Change, Witness, follow, merged
from kube.door.sync_client import Cluster
from kube.maintenance.groups import Group
from kube.nodes import NODES
from kube.paths import Object
from kube.times import timestamp

FIRST_SECONDS = 10.0
"""How long the first viewer waits for the first lists."""
AGAIN_SECONDS = 2.0
"""Between attempts to follow what may not be followed, or is not there."""
CHECK_SECONDS = 10.0
"""How often it is looked whether a CRD was installed or removed, and whether the API server answers at all."""
STALE_SECONDS = 20.0
"""What was not known to be so within this time is said to be old: two checks have failed."""
STEADY_SECONDS = 2.0
"""A watch that has stood for so long was accepted: one that is refused ends at once."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """What is there: nodes by name, maintenances oldest first, the groups they are of, and a number that grows.

    `stale` is the time (RFC 3339) up to which it is known to be so, "" for now.
    """

    version: int = 0
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    maintenances: tuple[Object, ...] = ()
    groups: tuple[Group, ...] = ()
    stale: str = ""


class Pulse(Witness):
    """Whether one kind is followed now; `told` is called with each failure."""

    def __init__(self, clock: Callable[[], float], told: Callable[[ApiError], None]) -> None:
        self._clock, self._told = clock, told
        self._broken = True  # until its list is read: what is shown is of an earlier following
        self._open_since: float | None = None

    def listed(self) -> None:
        """What is there is known."""
        self._broken = False

    def opened(self) -> None:
        """A watch was asked for."""
        self._open_since = self._clock()

    def closed(self) -> None:
        """It ended."""
        self._open_since = None

    def failed(self, error: ApiError) -> None:
        """Nothing is heard until a watch stands again."""
        self._broken = True
        self._told(error)

    @property
    def is_steady(self) -> bool:
        """The list was read and nothing has failed, or a watch has stood for a while since."""
        if self._broken and self._open_since is not None:
            self._broken = self._clock() - self._open_since < STEADY_SECONDS
        return not self._broken


class Live:
    """Follows the cluster on its loop thread and wakes waiting threads; close it before the cluster.

    `clock` is that of `time.monotonic`.
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
        """End the following, with all its connections."""
        self._cluster.run(self._end())

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._follow_always())

    async def _end(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    def now(self, seconds: float = FIRST_SECONDS) -> State:
        """What is there; waits for the first lists. Raises the `ApiError` that keeps them away."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.version > 0, seconds)
            if not self._state.version:
                raise self._error
            return self._state

    def age(self) -> float:
        """Seconds since what is shown was last known to be so."""
        return self._clock() - self._confirmed

    def stale_since(self) -> str:
        """See `State.stale`."""
        return self._state.stale

    def after(self, version: int, seconds: float) -> State | None:
        """The first state newer than `version`, None when there is none within `seconds`."""
        return self.when(lambda state: state.version > version, seconds)

    def when(self, holds: Callable[[State], bool], seconds: float) -> State | None:
        """The first state of which it holds, None when there is none within `seconds`."""
        with self._changed:
            return self._state if self._changed.wait_for(lambda: holds(self._state), seconds) else None

    async def _follow_always(self) -> None:
        """Follow whatever groups are served; begin anew when that changes or the server refuses."""
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
        """Follow until other groups are served; raises the `ApiError` that ends it before."""
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
        """Take in every change; publish a state once all lists are read, and then when it makes a difference."""
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
        """All that is shown is so now."""
        self._confirmed, self._confirmed_at = self._clock(), datetime.now(timezone.utc)

    def _note_age(self) -> None:
        """Have it shown when what is shown gets old, and when it is so no more."""
        stale = timestamp(self._confirmed_at) if self.age() > STALE_SECONDS else ""
        with self._changed:
            if self._state.version and self._state.stale != stale:
                self._state = replace(self._state, version=self._next_version(), stale=stale)
                self._changed.notify_all()

    def _next_version(self) -> int:
        """The clock, so that no version of an earlier process, which a browser may still show, comes again."""
        return max(self._state.version + 1, int(time.time() * 1000))

    def _publish(self, nodes: dict[str, NodeFacts], items: dict[str, Object], groups: list[Group]) -> None:
        maintenances = tuple(sorted(items.values(), key=lambda item: item["metadata"]["creationTimestamp"]))
        with self._changed:
            stale = self._state.stale if self.age() > STALE_SECONDS else ""
            self._state = State(self._next_version(), dict(nodes), maintenances, tuple(groups), stale)
            self._changed.notify_all()


def _take_node(nodes: dict[str, NodeFacts], change: Change) -> bool:
    """Whether it makes a difference: a node's heartbeats do not."""
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
