"""Coalesces PodSource's hints and posts them to a sink.

Of several hints within a short time, only the newest one is sent. A hint is retried until the sink accepts it or a
newer hint replaces it.
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

from eventing.endpoints import build_auth_header, create_ssl_context
from eventing.events import ObjectReference, build_event
from eventing.http_binding import encode_binary
from eventing.podsource.metrics import HINTS_SENT
from eventing.signatures import sign_event
from eventing.task_supervisor import TaskSupervisor
from kube.backoff import generate_delays

COALESCE_SECONDS = 0.5
"""Seconds for which a hint that is not urgent waits for newer ones; users need no faster status updates."""
MIN_INTERVAL_SECONDS = 0.05
"""Minimum seconds between two urgent hints of the same type for the same maintenance and node."""
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.05, 1.0
"""Initial and maximum seconds between attempts to send a hint; the delay doubles after each attempt."""
log = logging.getLogger("podsource")


@dataclass(frozen=True)
class Hint:
    """The content of a hint event: its data, its flags, and the number of earlier equal hints without effect."""

    data: Mapping[str, Any]
    flags: tuple[str, ...]
    repeats: int

    @property
    def seed(self) -> str:
        """Return the seed of the event's id, which consists of the resourceVersions in the data and of `repeats`.

        Two hints about the same state thus have the same event id, unless one of them is a repetition.
        """
        version = "|".join(str(self.data[name]) for name in ("podsVersion", "budgetsVersion") if self.data.get(name))
        return f"{version}|{self.repeats}" if self.repeats else version


class HintBuffer:
    """The newest hint of one type for one maintenance and node, and the time when it is due.

    `hint` is None if there is nothing to send.
    """

    def __init__(self) -> None:
        self.last_sent_at = 0.0
        self.due_at = 0.0
        self.hint: Hint | None = None
        self.wakeup = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether the buffer's hint still waits to be sent or to be accepted by the sink."""
        return self.task is not None and not self.task.done()


class HintSender:
    """Asynchronous context manager that posts hint events to `sink_url`; `tasks` runs and ends its tasks."""

    def __init__(self, sink_url: str, tasks: TaskSupervisor) -> None:
        self._sink_url, self._tasks = sink_url, tasks
        self._buffers: dict[tuple[str, str, str], HintBuffer] = {}

    async def __aenter__(self) -> HintSender:
        connector = aiohttp.TCPConnector(ssl=create_ssl_context())
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=10), trust_env=True
        )
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    def enqueue(
        self,
        event_type: str,
        reference: ObjectReference,
        node: str,
        data: Mapping[str, Any],
        *,
        urgent: bool,
        flags: tuple[str, ...] = (),
        repeats: int = 0,
    ) -> None:
        """Send a hint event after `COALESCE_SECONDS`, unless a newer hint replaces it.

        An `urgent` hint is sent immediately, but at least `MIN_INTERVAL_SECONDS` after the previous one. `repeats` is
        the number of earlier equal hints without effect.
        """
        buffer = self._buffers.setdefault((node, event_type, reference.uid), HintBuffer())
        now = time.monotonic()
        due = max(now, buffer.last_sent_at + MIN_INTERVAL_SECONDS) if urgent else now + COALESCE_SECONDS
        buffer.due_at = due if buffer.hint is None else min(buffer.due_at, due)
        buffer.hint = Hint(data, flags, repeats)
        buffer.wakeup.set()
        if not buffer.is_busy:
            buffer.task = self._tasks.start(self._send_hints(buffer, event_type, reference, node))

    def discard_hints(self, node: str, keep_types: tuple[str, ...] = ()) -> None:
        """Drop hints that the sink has not accepted before the drain's end, except for those of `keep_types`."""
        for key in [key for key in self._buffers if key[0] == node]:
            buffer = self._buffers.pop(key)
            task, buffer.task = buffer.task, None  # otherwise, the cancelled task's traceback keeps the buffer alive
            if task and key[1] not in keep_types:
                task.cancel()

    async def _send_hints(self, buffer: HintBuffer, event_type: str, reference: ObjectReference, node: str) -> None:
        backoff = generate_delays(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while buffer.hint is not None:
            await self._wait_until_due(buffer)
            hint, buffer.hint = buffer.hint, None
            buffer.last_sent_at = time.monotonic()
            if await self._post_hint(event_type, reference, node, hint):
                backoff = generate_delays(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
                continue
            buffer.hint = buffer.hint or hint  # a newer hint may have arrived during the request
            await asyncio.sleep(next(backoff))

    async def _wait_until_due(self, buffer: HintBuffer) -> None:
        """Wait until the buffer's hint is due; a hint that arrives during the wait may make it due earlier."""
        while (remaining := buffer.due_at - time.monotonic()) > 0:
            buffer.wakeup.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(buffer.wakeup.wait(), remaining)

    async def _post_hint(self, event_type: str, reference: ObjectReference, node: str, hint: Hint) -> bool:
        """Post the hint as an event; return whether the sink accepted it."""
        event = build_event(event_type, "podsource", reference, node, seed=hint.seed, data=hint.data, flags=hint.flags)
        message = encode_binary(sign_event(event))
        try:
            headers = {**message.headers, **build_auth_header()}
            async with self._session.post(self._sink_url, data=message.body, headers=headers) as response:
                if response.status < 300:
                    HINTS_SENT.labels(event_type).inc()
                    return True
                log.warning("sink responded with status %s to %s", response.status, event_type)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            log.warning("no response from the sink: %s", error)
        return False
