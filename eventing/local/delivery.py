"""Delivers each accepted event to the subscribers of all matching Triggers, with retries and dead letters.

At least once, and in order per key and subscriber: a lane holds the pending deliveries of one key to one subscriber's
URL, and delivers one after another. Lanes go by URL, not by Trigger: two Triggers that call one function must not run
it twice at once for the same node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from eventing import deadletters
from eventing.event_types import KNOWN
from eventing.events import TICK
from eventing.local.envelope import Envelope
from eventing.local.measures import Measures
from eventing.local.outbox import Failure, Outbox, PendingDelivery
from eventing.local.posting import Outcome, post
from eventing.local.triggers import Trigger
from eventing.logs import log
from kube.backoff import pauses

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds between attempts to deliver a dead letter, doubling, without end."""
GRACE_SECONDS = 5.0
"""For requests under way at the end: cut off, they would be made again at the next start."""
LETTERS_AT_ONCE = 4
"""To one sink of dead letters: what it does not take must not keep its Triggers, or others at that server, waiting."""
AT_ONE_DOOR = 10
"""Requests under way to one server, of all Triggers together: one process may serve all functions, and has so many
threads. What is more waits here, where no time-out of a request runs meanwhile."""
ERROR_TEXT = 500
"""Characters of an answer that go into the log."""
OTHER = "other"
"""The label of types that nobody knows and no Trigger names: whoever may post must not make a time series of each."""
LEVELS = {
    "delivered": logging.INFO,
    "retrying": logging.WARNING,
    "dead letter": logging.ERROR,
    "dead letter taken": logging.INFO,
    "dead letter not taken": logging.ERROR,
    "dropped": logging.ERROR,
}
"""Outcome of an attempt: the message of its log line, and the label `result` in the metrics."""

Lane = tuple[str, str]


class Delivery:
    """The dispatch of one outbox: it posts nothing until `begin`. Call everything from the event loop."""

    def __init__(
        self, outbox: Outbox, triggers: Mapping[str, Trigger], client: aiohttp.ClientSession, measures: Measures
    ) -> None:
        self._outbox, self._triggers, self._client, self._measures = outbox, triggers, client, measures
        self._lanes: dict[Lane, deque[PendingDelivery]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._slots = {name: asyncio.Semaphore(trigger.parallelism) for name, trigger in triggers.items()}
        self._letters: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(LETTERS_AT_ONCE))
        self._doors: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONE_DOOR))
        self._types = {*KNOWN, *(trigger.attributes.get("type", "") for trigger in triggers.values())}
        self._open = asyncio.Event()
        self._under_way = 0
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception when the outbox cannot be written any more. It still holds all pending deliveries."""

    def accept(self, event: Envelope) -> None:
        """Store an event and enqueue its deliveries. When this returns, a crash does not lose it."""
        self._accepted(event, self._outbox.accept(event, self._matching(event)))

    def resume(self) -> None:
        """Enqueue the deliveries that an earlier process left pending; those without a Trigger by now are dropped."""
        found = list(self._outbox.pending())
        dropped = [pending for pending in found if pending.trigger not in self._triggers]
        self._outbox.drop(dropped)
        for pending in dropped:
            log("dropped: its Trigger is gone", logging.WARNING, trigger=pending.trigger, sequence=pending.event)
        self._enqueue(pending for pending in found if pending.trigger in self._triggers)
        log("resumed", pending=len(found) - len(dropped))

    def begin(self) -> None:
        """Let requests go out: what they answer would be stranded in a process that ends for want of its port."""
        self._open.set()

    async def stop(self) -> None:
        """Start no request any more, give those under way time to end, then end all work."""
        self._open.clear()
        deadline = time.monotonic() + GRACE_SECONDS
        while self._under_way and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def _matching(self, event: Envelope) -> list[str]:
        return [trigger.name for trigger in self._triggers.values() if trigger.matches(event.attribute)]

    def _accepted(self, event: Envelope, deliveries: list[PendingDelivery]) -> None:
        kind = event.attribute("type") or ""
        if kind == TICK:
            self._forget_waiting(event, deliveries)
        self._measures.accepted.labels(kind if kind in self._types else OTHER).inc()
        log("accepted", logging.INFO, **event.fields(), triggers=len(deliveries))
        self._enqueue(deliveries)

    def _forget_waiting(self, event: Envelope, ticks: Iterable[PendingDelivery]) -> None:
        """Acknowledge earlier ones like it that still wait for its subscribers: a tick says all that they do.

        A server that answered nobody for some minutes would otherwise have all of them to answer, one after another.
        Whoever takes all events, as `record` does, gets each.
        """
        for tick in ticks:
            lane, trigger = self._lanes.get(self._lane(tick), deque()), self._triggers[tick.trigger]
            if trigger.attributes.get("type") != TICK:
                continue
            waiting = [pending for pending in list(lane)[1:] if pending.trigger == tick.trigger]
            for earlier in (pending for pending in waiting if self._outbox.event(pending.event).is_like(event)):
                lane.remove(earlier)
                self._outbox.acknowledge(earlier)
                self._measures.queued.dec()
                log("dropped: a later one says the same", logging.INFO, trigger=trigger.name, sequence=earlier.event)

    def _enqueue(self, deliveries: Iterable[PendingDelivery]) -> None:
        for pending in deliveries:
            lane = self._lane(pending)
            self._measures.queued.inc()
            if lane in self._lanes:
                self._lanes[lane].append(pending)
            else:
                self._lanes[lane] = deque([pending])
                worker = asyncio.get_running_loop().create_task(self._work(lane))
                self._workers.add(worker)
                worker.add_done_callback(self._worked)

    def _lane(self, pending: PendingDelivery) -> Lane:
        """A dead letter has a lane of its own: one that is never accepted must not hold back anything."""
        trigger = self._triggers[pending.trigger]
        if pending.failure:
            return (trigger.name, f"dead letter {pending.event}")
        return (trigger.url, pending.key)

    async def _work(self, lane: Lane) -> None:
        queue = self._lanes[lane]
        while queue:
            pending = queue[0]
            await (self._dead_letter(pending, pending.failure) if pending.failure else self._deliver(pending))
            queue.popleft()
            self._measures.queued.dec()
        del self._lanes[lane]

    def _worked(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) and not self.broken.done():
            self.broken.set_exception(error)

    async def _deliver(self, pending: PendingDelivery) -> None:
        """Retry as often as the Trigger says; then dead-letter the event, or drop it where there is no such sink."""
        trigger, event = self._triggers[pending.trigger], self._outbox.event(pending.event)
        for retries in range(trigger.policy.retry + 1):
            outcome = await self._attempt(trigger, trigger.url, event, self._slots[trigger.name])
            if outcome.delivered:
                self._report("delivered", trigger, event, outcome)
                self._acknowledged(pending, outcome.reply)
                return
            if not outcome.retryable or retries == trigger.policy.retry:
                break
            pause = trigger.policy.pause(retries)
            self._report("retrying", trigger, event, outcome, pause=pause)
            await asyncio.sleep(pause)
        self._failed(pending, trigger, event, outcome)

    def _acknowledged(self, pending: PendingDelivery, reply: Envelope | None) -> None:
        following = self._outbox.acknowledge(pending, reply, self._matching(reply) if reply else ())
        if reply:
            self._accepted(reply, following)

    def _failed(self, pending: PendingDelivery, trigger: Trigger, event: Envelope, outcome: Outcome) -> None:
        if trigger.policy.dead_letters is None:
            self._outbox.acknowledge(pending)
            self._report("dropped", trigger, event, outcome)
            return
        self._report("dead letter", trigger, event, outcome)
        self._enqueue([self._outbox.dead_letter(pending, Failure(trigger.url, outcome.status, outcome.data))])

    async def _dead_letter(self, pending: PendingDelivery, failure: Failure) -> None:
        """Deliver a dead letter to its sink, however long it takes, unless the sink refuses it for good.

        The reply does not matter (as on Knative).
        """
        trigger, event = self._triggers[pending.trigger], self._outbox.event(pending.event)
        if trigger.policy.dead_letters is None:
            self._failed(pending, trigger, event, Outcome(failure.code))
            return
        letter = event.extended(deadletters.extensions(failure.destination, failure.code, failure.data))
        sink, backoff = trigger.policy.dead_letters, pauses(FIRST_PAUSE, LONGEST_PAUSE)
        while not (outcome := await self._attempt(trigger, sink, letter, self._letters[sink])).accepted:
            if not outcome.retryable:
                self._outbox.acknowledge(pending)
                self._report("dropped", trigger, event, outcome)
                return
            pause = next(backoff)
            self._report("dead letter not taken", trigger, event, outcome, pause=pause)
            await asyncio.sleep(pause)
        self._report("dead letter taken", trigger, event, outcome)
        self._outbox.acknowledge(pending)

    async def _attempt(self, trigger: Trigger, url: str, event: Envelope, slots: asyncio.Semaphore) -> Outcome:
        async with slots, self._doors[urlsplit(url).netloc]:
            await self._open.wait()
            self._under_way += 1
            try:
                with self._measures.in_flight.track_inprogress():
                    outcome = await post(self._client, url, event, trigger.policy.timeout)
            finally:
                self._under_way -= 1
        self._measures.seconds.labels(trigger.name).observe(outcome.seconds)
        return outcome

    def _report(self, message: str, trigger: Trigger, event: Envelope, outcome: Outcome, **more: float) -> None:
        """Count and log what became of an attempt."""
        self._measures.attempts.labels(trigger.name, message).inc()
        fields: dict[str, Any] = {"trigger": trigger.name, "status": outcome.status, **more}
        fields["ms"] = round(1000 * outcome.seconds, 2)
        if not outcome.delivered:
            fields["error"] = outcome.text.decode(errors="replace")[:ERROR_TEXT]
        log(message, LEVELS[message], **event.fields(), **fields)
