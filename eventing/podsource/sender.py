"""Sending hints without chatter: what comes close together is told once, the newest state wins, none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import aiohttp

from eventing.events import Reference, event
from eventing.wire import binary

SOON = 0.5
"""Seconds a hint that is not urgent waits for company: nobody reads a progress bar faster."""
APART = 0.05
"""Seconds between two urgent hints of one type for one node."""
BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts while the sink does not answer; the last one repeats."""
log = logging.getLogger("podsource")


Said = tuple[Mapping[str, Any], tuple[str, ...]]
"""Data and flags of an event that waits."""


class Slot:
    """What waits to be said of one type to one maintenance."""

    def __init__(self) -> None:
        self.last = 0.0
        self.due = 0.0
        self.said: Said | None = None
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Sender:
    """Posts events to `sink`. An asynchronous context manager."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._slots: dict[tuple[str, str, str], Slot] = {}

    async def __aenter__(self) -> Sender:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), trust_env=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for slot in self._slots.values():
            if slot.task:
                slot.task.cancel()
        await self._session.close()

    def say(
        self,
        kind: str,
        maintenance: Reference,
        node: str,
        data: Mapping[str, Any],
        *,
        urgent: bool,
        flags: tuple[str, ...] = (),
    ) -> None:
        """Send an event `SOON`, together with what comes until then; an `urgent` one at once, `APART` from the last."""
        slot = self._slots.setdefault((node, kind, maintenance.uid), Slot())
        now = time.monotonic()
        due = max(now, slot.last + APART) if urgent else now + SOON
        slot.due = due if slot.said is None else min(slot.due, due)
        slot.said = data, flags
        slot.wake.set()
        if slot.task is None or slot.task.done():
            slot.task = asyncio.create_task(self._send(slot, kind, maintenance, node))

    def forget(self, node: str) -> None:
        """The node's drain is over: what was not said needs not be said."""
        for key in [key for key in self._slots if key[0] == node]:
            slot = self._slots.pop(key)
            if slot.task:
                slot.task.cancel()

    async def _send(self, slot: Slot, kind: str, maintenance: Reference, node: str) -> None:
        failures = 0
        while slot.said is not None:
            await self._until_due(slot)
            said, slot.said = slot.said, None
            slot.last = time.monotonic()
            if await self._post(kind, maintenance, node, said):
                failures = 0
                continue
            slot.said = slot.said or said  # what came meanwhile is newer
            await asyncio.sleep(BACKOFF[min(failures, len(BACKOFF) - 1)])
            failures += 1

    async def _until_due(self, slot: Slot) -> None:
        """Wait until the slot is due; what is said meanwhile may make it due earlier."""
        while (rest := slot.due - time.monotonic()) > 0:
            slot.wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(slot.wake.wait(), rest)

    async def _post(self, kind: str, maintenance: Reference, node: str, said: Said) -> bool:
        data, flags = said
        version = data.get("podsVersion") or data.get("budgetsVersion") or ""
        message = binary(event(kind, "podsource", maintenance, node, seed=version, data=data, flags=flags))
        try:
            async with self._session.post(self._sink, data=message.body, headers=message.headers) as answer:
                if answer.status < 300:
                    return True
                log.warning("the sink answered %s to %s", answer.status, kind)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            log.warning("the sink does not answer: %s", error)
        return False
