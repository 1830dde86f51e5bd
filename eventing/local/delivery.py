"""Hands every accepted event to every Trigger that wants it, until each has answered or its dead letter is taken.

At least once, and in order per key and subscriber: a lane is what one subscriber URL is owed for one key, worked off
one after another. Lanes go by URL, not by Trigger: two Triggers that call one function must not run it twice at once
for the same node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp

from eventing.local.envelope import Envelope
from eventing.local.measures import Measures
from eventing.local.outbox import Failure, Outbox, Owed
from eventing.local.posting import Outcome, post
from eventing.local.triggers import Trigger
from eventing.logs import log

BURY_FIRST, BURY_LONGEST = 0.2, 30.0
"""Seconds between attempts to hand over a dead letter, doubling; it is never given up."""
GRACE_SECONDS = 5.0
"""At the end, requests under way may finish: cut off, they would be made again at the next start."""
ERROR_TEXT = 500
"""Characters of an answer that go into the log."""
LEVELS = {
    "delivered": logging.INFO,
    "retrying": logging.WARNING,
    "dead letter": logging.ERROR,
    "dead letter taken": logging.INFO,
    "dead letter not taken": logging.ERROR,
    "dropped": logging.ERROR,
}
"""What becomes of an attempt: the message of its log line and the `result` in the figures."""

Lane = tuple[str, str]


class Delivery:
    """The dispatch of one outbox. Call everything from the event loop."""

    def __init__(
        self, outbox: Outbox, triggers: Mapping[str, Trigger], client: aiohttp.ClientSession, measures: Measures
    ) -> None:
        self._outbox, self._triggers, self._client, self._measures = outbox, triggers, client, measures
        self._lanes: dict[Lane, deque[Owed]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._slots = {name: asyncio.Semaphore(trigger.parallelism) for name, trigger in triggers.items()}
        self._open = asyncio.Event()
        self._open.set()
        self._under_way = 0
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception when work cannot go on: the outbox cannot be written. What is owed is in it."""

    def accept(self, event: Envelope) -> None:
        """Keep an event and queue its deliveries. When this returns, a crash does not lose it."""
        owed = self._outbox.accept(event, self._wanting(event))
        self._accepted(event, owed)

    def resume(self) -> None:
        """Queue what an earlier run owed; what its Trigger, gone by now, was owed is dropped."""
        pending = list(self._outbox.pending())
        gone = [owed for owed in pending if owed.trigger not in self._triggers]
        self._outbox.drop(gone)
        for owed in gone:
            log("dropped: its Trigger is gone", logging.WARNING, trigger=owed.trigger, sequence=owed.event)
        self._queue(owed for owed in pending if owed.trigger in self._triggers)
        log("resumed", owed=len(pending) - len(gone))

    async def stop(self) -> None:
        """Begin no request any more, give those under way time to end, then end all work."""
        self._open.clear()
        deadline = time.monotonic() + GRACE_SECONDS
        while self._under_way and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def _wanting(self, event: Envelope) -> list[str]:
        return [trigger.name for trigger in self._triggers.values() if trigger.wants(event.attribute)]

    def _accepted(self, event: Envelope, owed: list[Owed]) -> None:
        self._measures.accepted.labels(event.attribute("type") or "").inc()
        log("accepted", logging.INFO, **event.fields(), triggers=len(owed))
        self._queue(owed)

    def _queue(self, deliveries: Iterable[Owed]) -> None:
        for owed in deliveries:
            lane = self._lane(owed)
            self._measures.queued.inc()
            if lane in self._lanes:
                self._lanes[lane].append(owed)
            else:
                self._lanes[lane] = deque([owed])
                worker = asyncio.get_running_loop().create_task(self._work(lane))
                self._workers.add(worker)
                worker.add_done_callback(self._worked)

    def _lane(self, owed: Owed) -> Lane:
        """A dead letter has a lane of its own: one that is never taken must not hold back anything."""
        trigger = self._triggers[owed.trigger]
        if owed.failure:
            return (trigger.name, f"dead letter {owed.event}")
        return (trigger.url, owed.key)

    async def _work(self, lane: Lane) -> None:
        queue = self._lanes[lane]
        while queue:
            owed = queue[0]
            await (self._bury(owed, owed.failure) if owed.failure else self._deliver(owed))
            queue.popleft()
            self._measures.queued.dec()
        del self._lanes[lane]

    def _worked(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) and not self.broken.done():
            self.broken.set_exception(error)

    async def _deliver(self, owed: Owed) -> None:
        """Try as often as the Trigger says; then it is a dead letter, or dropped where there is no sink for those."""
        trigger, event = self._triggers[owed.trigger], self._outbox.event(owed.event)
        for retries in range(trigger.policy.retry + 1):
            outcome = await self._attempt(trigger, trigger.url, event)
            if outcome.delivered:
                self._note("delivered", trigger, event, outcome)
                self._answered(owed, outcome.reply)
                return
            if not outcome.passing or retries == trigger.policy.retry:
                break
            pause = trigger.policy.pause(retries)
            self._note("retrying", trigger, event, outcome, pause=pause)
            await asyncio.sleep(pause)
        self._failed(owed, trigger, event, outcome)

    def _answered(self, owed: Owed, reply: Envelope | None) -> None:
        following = self._outbox.answer(owed, reply, self._wanting(reply) if reply else ())
        if reply:
            self._accepted(reply, following)

    def _failed(self, owed: Owed, trigger: Trigger, event: Envelope, outcome: Outcome) -> None:
        if trigger.policy.dead_letters is None:
            self._outbox.answer(owed)
            self._note("dropped", trigger, event, outcome)
            return
        self._note("dead letter", trigger, event, outcome)
        self._queue([self._outbox.bury(owed, Failure(trigger.url, outcome.status, outcome.data))])

    async def _bury(self, owed: Owed, failure: Failure) -> None:
        """Hand a dead letter over, however long it takes. Its answer is of no interest (as on Knative)."""
        trigger, event = self._triggers[owed.trigger], self._outbox.event(owed.event)
        if trigger.policy.dead_letters is None:
            self._failed(owed, trigger, event, Outcome(failure.code))
            return
        letter = event.extended(_extensions(failure))
        pause = BURY_FIRST
        while not (outcome := await self._attempt(trigger, trigger.policy.dead_letters, letter)).taken:
            self._note("dead letter not taken", trigger, event, outcome, pause=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, BURY_LONGEST)
        self._note("dead letter taken", trigger, event, outcome)
        self._outbox.answer(owed)

    async def _attempt(self, trigger: Trigger, url: str, event: Envelope) -> Outcome:
        async with self._slots[trigger.name]:
            await self._open.wait()
            self._under_way += 1
            try:
                with self._measures.in_flight.track_inprogress():
                    outcome = await post(self._client, url, event, trigger.policy.timeout)
            finally:
                self._under_way -= 1
        self._measures.seconds.labels(trigger.name).observe(outcome.seconds)
        return outcome

    def _note(self, message: str, trigger: Trigger, event: Envelope, outcome: Outcome, **more: float) -> None:
        """Count and log what became of an attempt."""
        self._measures.attempts.labels(trigger.name, message).inc()
        fields: dict[str, Any] = {"trigger": trigger.name, "status": outcome.status, **more}
        fields["ms"] = round(1000 * outcome.seconds, 2)
        if not outcome.delivered:
            fields["error"] = outcome.text.decode(errors="replace")[:ERROR_TEXT]
        log(message, LEVELS[message], **event.fields(), **fields)


def _extensions(failure: Failure) -> dict[str, str]:
    """What Knative adds to a dead letter; the data stays away when there is none."""
    extensions = {"knativeerrordest": failure.destination, "knativeerrorcode": str(failure.code)}
    return {**extensions, "knativeerrordata": failure.data} if failure.data else extensions
