"""Coalesces PodSource's hints and posts them to a sink: of those close together the newest goes out, none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from eventing.events import Reference, event
from eventing.podsource.metrics import HINTS
from eventing.podsource.tasks import Tasks
from eventing.signatures import signed
from eventing.sinks import identity, trust
from eventing.wire import binary
from kube.backoff import pauses

COALESCE_SECONDS = 0.5
"""How long a hint that is not urgent waits for newer ones: nobody reads a progress bar faster."""
INTERVAL_SECONDS = 0.05
"""Between two urgent hints of one type for one maintenance and node."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between attempts while the sink does not accept a hint, doubling."""
log = logging.getLogger("podsource")


@dataclass(frozen=True)
class Hint:
    """What one event will carry: its data and flags, and how often nobody acted on the like."""

    data: Mapping[str, Any]
    flags: tuple[str, ...]
    again: int

    @property
    def seed(self) -> str:
        """The version of what was seen: the same state makes an event of the same id, unless it is told again."""
        version = "|".join(str(self.data[name]) for name in ("podsVersion", "budgetsVersion") if self.data.get(name))
        return f"{version}|{self.again}" if self.again else version


class Slot:
    """The newest hint of one type for one maintenance and node, None while all are sent, and when it is due."""

    def __init__(self) -> None:
        self.last = 0.0
        self.due = 0.0
        self.hint: Hint | None = None
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def at_work(self) -> bool:
        """Whether a hint is to be sent, or not accepted yet."""
        return self.task is not None and not self.task.done()


class Sender:
    """Posts events to `sink`, in tasks of its own among `tasks`. An asynchronous context manager."""

    def __init__(self, sink: str, tasks: Tasks) -> None:
        self._sink, self._tasks = sink, tasks
        self._slots: dict[tuple[str, str, str], Slot] = {}

    async def __aenter__(self) -> Sender:
        connector = aiohttp.TCPConnector(ssl=trust())
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=10), trust_env=True
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for slot in self._slots.values():
            if slot.task:
                slot.task.cancel()
        await self._session.close()

    def enqueue(
        self,
        kind: str,
        maintenance: Reference,
        node: str,
        data: Mapping[str, Any],
        *,
        urgent: bool,
        flags: tuple[str, ...] = (),
        again: int = 0,
    ) -> None:
        """Emit an event after `COALESCE_SECONDS`, unless a newer one takes its place.

        An `urgent` one goes out at once, `INTERVAL_SECONDS` after the last one. `again` is how often the same was told
        and nobody acted.
        """
        slot = self._slots.setdefault((node, kind, maintenance.uid), Slot())
        now = time.monotonic()
        due = max(now, slot.last + INTERVAL_SECONDS) if urgent else now + COALESCE_SECONDS
        slot.due = due if slot.hint is None else min(slot.due, due)
        slot.hint = Hint(data, flags, again)
        slot.wake.set()
        if not slot.at_work:
            slot.task = self._tasks.start(self._send_hints(slot, kind, maintenance, node))

    def discard(self, node: str, but: tuple[str, ...] = ()) -> None:
        """Drop the node's hints that were not accepted yet, but for those of these types: its drain is over."""
        of_node = {key: slot for key, slot in self._slots.items() if key[0] == node}
        for key, slot in of_node.items():
            if key[1] in but and slot.at_work:
                continue
            del self._slots[key]
            if slot.task:
                slot.task.cancel()

    async def _send_hints(self, slot: Slot, kind: str, maintenance: Reference, node: str) -> None:
        backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE)
        while slot.hint is not None:
            await self._until_due(slot)
            hint, slot.hint = slot.hint, None
            slot.last = time.monotonic()
            if await self._post(kind, maintenance, node, hint):
                backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE)
                continue
            slot.hint = slot.hint or hint  # one that came meanwhile is newer
            await asyncio.sleep(next(backoff))

    async def _until_due(self, slot: Slot) -> None:
        """Wait until the slot is due; a hint that comes meanwhile may make it due earlier."""
        while (rest := slot.due - time.monotonic()) > 0:
            slot.wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(slot.wake.wait(), rest)

    async def _post(self, kind: str, maintenance: Reference, node: str, hint: Hint) -> bool:
        """Publish the hint as an event; whether the sink accepted it."""
        emitted = event(kind, "podsource", maintenance, node, seed=hint.seed, data=hint.data, flags=hint.flags)
        message = binary(signed(emitted))
        try:
            headers = {**message.headers, **identity()}
            async with self._session.post(self._sink, data=message.body, headers=headers) as response:
                if response.status < 300:
                    HINTS.labels(kind).inc()
                    return True
                log.warning("the sink answered %s to %s", response.status, kind)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            log.warning("the sink does not answer: %s", error)
        return False
