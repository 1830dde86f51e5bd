"""Delivers each accepted event to the subscribers of all matching Triggers, with retries and dead letters.

Delivery is at least once, and in order per key and subscriber. A lane is the queue of the pending deliveries of one key
to one subscriber URL; it delivers them one after another. Lanes depend on the URL, not on the Trigger, because two
Triggers of one function must not run it concurrently for the same node.
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

from eventing import dead_letters
from eventing.event_types import KNOWN
from eventing.events import TICK
from eventing.local.envelope import Envelope
from eventing.local.metrics import Measures
from eventing.local.outbox import Failure, Outbox, PendingDelivery
from eventing.local.posting import Outcome, post
from eventing.local.triggers import Trigger
from eventing.logs import log
from kube.backoff import pauses

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Initial and maximum seconds between attempts to deliver a dead letter, doubling; attempts are unlimited."""
GRACE_SECONDS = 5.0
"""Seconds that requests in flight have at shutdown; interrupted ones would be repeated at the next start."""
LETTERS_AT_ONCE = 4
"""Maximum concurrent requests to one dead letter sink.

A sink that does not accept them must not block its Triggers, or other subscribers at the same server.
"""
AT_ONE_DOOR = 10
"""Maximum requests in flight to one server, for all Triggers together.

One process may serve all functions, and has this number of threads. Further requests wait here, where the timeout of
the request has not started yet.
"""
ERROR_TEXT = 500
"""Maximum characters of a response in the log."""
OTHER = "other"
"""Metric label for event types that are neither known nor in a Trigger's filter.

A sender must not be able to create a time series for every type that it invents.
"""
LEVELS = {
    "delivered": logging.INFO,
    "retrying": logging.WARNING,
    "dead letter": logging.ERROR,
    "dead letter taken": logging.INFO,
    "dead letter not taken": logging.ERROR,
    "dropped": logging.ERROR,
}
"""Outcome of an attempt → log level. The outcome is the log message, and the label `result` in the metrics."""

Lane = tuple[str, str]


class Delivery:
    """The dispatcher of one outbox; it posts nothing until `begin`. Its methods must run in the event loop."""

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
        """Receives the first exception of a worker, such as a failed outbox write; the outbox keeps the deliveries."""

    def accept(self, event: Envelope) -> None:
        """Store an event and enqueue its deliveries. After this returns, a crash does not lose the event."""
        self._accepted(event, self._outbox.accept(event, self._matching(event)))

    def resume(self) -> None:
        """Enqueue the deliveries that an earlier process left pending; drop those whose Trigger no longer exists."""
        found = list(self._outbox.pending())
        dropped = [pending for pending in found if pending.trigger not in self._triggers]
        self._outbox.drop(dropped)
        for pending in dropped:
            log("dropped: its Trigger is gone", logging.WARNING, trigger=pending.trigger, sequence=pending.event)
        self._enqueue(pending for pending in found if pending.trigger in self._triggers)
        log("resumed", pending=len(found) - len(dropped))

    def begin(self) -> None:
        """Allow requests to be sent.

        Called once the ingress listens. If its port is in use, the process ends, and earlier replies would be stuck in
        the outbox.
        """
        self._open.set()

    async def stop(self) -> None:
        """Send no more requests, let those in flight finish within the grace period, then cancel all workers."""
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
        """Acknowledge earlier, equal ticks that still wait for the same subscribers, as the new one replaces them.

        Otherwise a server that was unresponsive for some minutes would have to handle all of them, one after another.
        Triggers without a filter for ticks, such as that of `record`, get every tick.
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
        """Return a delivery's lane. Each dead letter has its own, because it may block its lane forever."""
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
        """Post the event, retrying as the Trigger specifies; then dead-letter it, or drop it if it has no sink."""
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
        """Deliver a dead letter to its sink, retrying without limit unless the sink rejects it permanently.

        The sink's reply is ignored, as on Knative.
        """
        trigger, event = self._triggers[pending.trigger], self._outbox.event(pending.event)
        if trigger.policy.dead_letters is None:
            self._failed(pending, trigger, event, Outcome(failure.code))
            return
        letter = event.extended(dead_letters.extensions(failure.destination, failure.code, failure.data))
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
        """Count and log the outcome of an attempt."""
        self._measures.attempts.labels(trigger.name, message).inc()
        fields: dict[str, Any] = {"trigger": trigger.name, "status": outcome.status, **more}
        fields["ms"] = round(1000 * outcome.seconds, 2)
        if not outcome.delivered:
            fields["error"] = outcome.text.decode(errors="replace")[:ERROR_TEXT]
        log(message, LEVELS[message], **event.fields(), **fields)
