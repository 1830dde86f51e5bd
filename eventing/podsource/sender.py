"""Coalesces PodSource's hints and posts them to a sink.

Of several hints within a short time only the newest is sent. It is retried until the sink accepts it or a newer one
replaces it.
"""

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
from eventing.podsource.task_supervisor import Tasks
from eventing.signatures import signed
from eventing.sinks import identity, trust
from eventing.http_binding import binary
from kube.backoff import pauses

COALESCE_SECONDS = 0.5
"""Seconds that a hint waits for newer ones unless it is urgent; faster status updates would not help users."""
INTERVAL_SECONDS = 0.05
"""Minimum seconds between two urgent hints of one type for one maintenance and node."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Initial and maximum seconds between attempts while the sink does not accept a hint, doubling."""
log = logging.getLogger("podsource")


@dataclass(frozen=True)
class Hint:
    """The content of one event: data, flags, and the number of earlier hints like it without effect."""

    data: Mapping[str, Any]
    flags: tuple[str, ...]
    again: int

    @property
    def seed(self) -> str:
        """Return the seed of the event's id: the resourceVersions in the data, and `again`.

        The same state gives an event with the same id, unless the hint is a repetition.
        """
        version = "|".join(str(self.data[name]) for name in ("podsVersion", "budgetsVersion") if self.data.get(name))
        return f"{version}|{self.again}" if self.again else version


class Slot:
    """The newest hint of one type for one maintenance and node, and when it is due.

    `hint` is None while nothing has to be sent.
    """

    def __init__(self) -> None:
        self.last = 0.0
        self.due = 0.0
        self.hint: Hint | None = None
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def at_work(self) -> bool:
        """Return whether a hint waits to be sent, or has not been accepted yet."""
        return self.task is not None and not self.task.done()


class Sender:
    """Asynchronous context manager that posts events to `sink`, from tasks of its own in `tasks`."""

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
        """Send an event after `COALESCE_SECONDS`, unless a newer one replaces it.

        An `urgent` event is sent at once, but at least `INTERVAL_SECONDS` after the last one. `again` is the number of
        earlier hints like it without effect.
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
        """Drop the node's unaccepted hints, except those of the types in `but`, because its drain has ended."""
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
            slot.hint = slot.hint or hint  # a hint that arrived meanwhile is newer
            await asyncio.sleep(next(backoff))

    async def _until_due(self, slot: Slot) -> None:
        """Wait until the slot is due; a hint that arrives meanwhile may make it due earlier."""
        while (rest := slot.due - time.monotonic()) > 0:
            slot.wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(slot.wake.wait(), rest)

    async def _post(self, kind: str, maintenance: Reference, node: str, hint: Hint) -> bool:
        """Post the hint as an event; return whether the sink accepted it."""
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
