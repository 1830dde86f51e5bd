"""Delivers each accepted event to the subscribers of all matching Triggers, with retries and dead letters.

Delivery is at least once, and in order per ordering key and subscriber. Each queue contains the pending deliveries for
one ordering key and subscriber URL, and makes one delivery at a time. Queues depend on the URL instead of the Trigger,
because two Triggers for one function must not run it concurrently for the same node.
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
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from eventing import dead_letters
from eventing.events import KNOWN_TYPES
from eventing.local.envelope import Envelope, PostResult, post_envelope
from eventing.local.manifests import Trigger
from eventing.local.outbox import Failure, Outbox, PendingDelivery
from eventing.logs import log
from eventing.task_supervisor import TaskSupervisor
from kube.backoff import generate_delays

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.2, 30.0
"""Initial and maximum seconds between attempts to deliver a dead letter; delays double, attempts are unlimited."""
SHUTDOWN_GRACE_SECONDS = 5.0
"""Seconds for which a shutdown waits for requests in flight; the next start repeats interrupted requests."""
MAX_DEAD_LETTERS_PER_SINK = 4
"""Maximum number of concurrent requests to one dead letter sink.

A sink that does not accept requests must not block its Triggers, or other subscribers on the same server.
"""
MAX_REQUESTS_PER_SERVER = 10
"""Maximum number of requests in flight to one server, for all Triggers together.

One process may serve all functions, with this number of threads. Further requests wait in the broker, before their
timeout starts.
"""
MAX_ERROR_CHARACTERS = 500
"""Maximum length, in characters, of a response in the log."""
OTHER_TYPE_LABEL = "other"
"""Metric label for event types that are neither known nor in a Trigger's filter.

Otherwise, a sender could create a time series for every type that it invents.
"""
DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets, in seconds, of the histogram of response times; a function responds within milliseconds to a second."""
LOG_LEVELS = {
    "delivered": logging.INFO,
    "retrying": logging.WARNING,
    "dead letter": logging.ERROR,
    "dead letter delivered": logging.INFO,
    "dead letter not delivered": logging.ERROR,
    "dropped": logging.ERROR,
}
"""Log level of each outcome of an attempt; the outcome is the log message and the metrics' label `result`."""

QueueKey = tuple[str, str]


class DeliveryMetrics:
    """Prometheus metrics of the local delivery, in their own registry; docs/reference.md lists them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "nodemaintenance_delivery"
        self.accepted = Counter(
            f"{prefix}_events_accepted",
            "Accepted events; unknown types count as other",
            ["type"],
            registry=self.registry,
        )
        self.attempts = Counter(
            f"{prefix}_attempts",
            "Delivery attempts by Trigger and result",
            ["trigger", "result"],
            registry=self.registry,
        )
        self.queued = Gauge(f"{prefix}_queue_length", "Pending deliveries, in flight or not", registry=self.registry)
        self.in_flight = Gauge(f"{prefix}_in_flight", "Requests to functions in flight", registry=self.registry)
        self.duration_seconds = Histogram(
            f"{prefix}_seconds",
            "Time that a function took to respond",
            ["trigger"],
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Return the metrics in the Prometheus exposition format."""
        return generate_latest(self.registry)


class Delivery:
    """Dispatches the events in an outbox; no event is posted before `start`. All methods must run in the event loop.

    `tasks` runs the queues' workers. If a worker fails, for example because of a failed write, the outbox keeps its
    deliveries.
    """

    def __init__(
        self,
        outbox: Outbox,
        triggers: Mapping[str, Trigger],
        session: aiohttp.ClientSession,
        metrics: DeliveryMetrics,
        tasks: TaskSupervisor,
    ) -> None:
        self._outbox, self._triggers, self._session, self._metrics = outbox, triggers, session, metrics
        self._tasks = tasks
        self._queues: dict[QueueKey, deque[PendingDelivery]] = {}
        self._trigger_semaphores = {name: asyncio.Semaphore(trigger.parallelism) for name, trigger in triggers.items()}
        self._sink_semaphores: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MAX_DEAD_LETTERS_PER_SINK)
        )
        self._server_semaphores: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MAX_REQUESTS_PER_SERVER)
        )
        self._known_types = {*KNOWN_TYPES, *(trigger.attributes.get("type", "") for trigger in triggers.values())}
        self._started = asyncio.Event()
        self._in_flight = 0

    def accept(self, event: Envelope) -> None:
        """Store an event and enqueue its deliveries; after the call returns, a crash does not lose the event."""
        self._enqueue_accepted(event, self._outbox.accept(event, self._list_matching_triggers(event)))

    def resume(self) -> None:
        """Enqueue the deliveries that an earlier process left pending; drop those whose Trigger no longer exists."""
        deliveries = list(self._outbox.list_pending())
        dropped = [pending for pending in deliveries if pending.trigger not in self._triggers]
        self._outbox.drop(dropped)
        for pending in dropped:
            log(
                "dropped: the Trigger no longer exists",
                logging.WARNING,
                trigger=pending.trigger,
                sequence=pending.sequence,
            )
        self._enqueue(pending for pending in deliveries if pending.trigger in self._triggers)
        log("resumed", pending=len(deliveries) - len(dropped))

    def start(self) -> None:
        """Allow requests to be sent.

        The broker calls this method after the ingress has started to listen. If the ingress's port is in use, the
        process exits. Replies to earlier requests would then be stuck in the outbox.
        """
        self._started.set()

    async def stop(self) -> None:
        """Stop sending requests, and wait for those in flight until the grace period ends."""
        self._started.clear()
        deadline = time.monotonic() + SHUTDOWN_GRACE_SECONDS
        while self._in_flight and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def _list_matching_triggers(self, event: Envelope) -> list[str]:
        return [trigger.name for trigger in self._triggers.values() if trigger.matches(event.get_attribute)]

    def _enqueue_accepted(self, event: Envelope, deliveries: list[PendingDelivery]) -> None:
        event_type = event.get_attribute("type") or ""
        self._metrics.accepted.labels(event_type if event_type in self._known_types else OTHER_TYPE_LABEL).inc()
        log("accepted", logging.INFO, **event.build_log_fields(), triggers=len(deliveries))
        self._enqueue(deliveries)

    def _enqueue(self, deliveries: Iterable[PendingDelivery]) -> None:
        for pending in deliveries:
            key = self._get_queue_key(pending)
            self._metrics.queued.inc()
            if key in self._queues:
                self._queues[key].append(pending)
            else:
                self._queues[key] = deque([pending])
                self._tasks.start(self._process_queue(key))

    def _get_queue_key(self, pending: PendingDelivery) -> QueueKey:
        """Return the key of a delivery's queue; a dead letter may block its queue, so each has its own queue."""
        trigger = self._triggers[pending.trigger]
        if pending.failure:
            return (trigger.name, f"dead letter {pending.sequence}")
        return (trigger.subscriber_url, pending.ordering_key)

    async def _process_queue(self, key: QueueKey) -> None:
        queue = self._queues[key]
        while queue:
            pending = queue[0]
            await (self._deliver_dead_letter(pending, pending.failure) if pending.failure else self._deliver(pending))
            queue.popleft()
            self._metrics.queued.dec()
        del self._queues[key]

    async def _deliver(self, pending: PendingDelivery) -> None:
        """Post the event with the Trigger's retries; after the last one, send it to the dead letter sink or drop it."""
        trigger, event = self._triggers[pending.trigger], self._outbox.read_event(pending.sequence)
        for retries in range(trigger.policy.retry + 1):
            outcome = await self._post_attempt(
                trigger, trigger.subscriber_url, event, self._trigger_semaphores[trigger.name]
            )
            if outcome.is_delivered:
                self._report_outcome("delivered", trigger, event, outcome)
                self._acknowledge(pending, outcome.reply)
                return
            if not outcome.is_retryable or retries == trigger.policy.retry:
                break
            pause = trigger.policy.get_backoff_seconds(retries)
            self._report_outcome("retrying", trigger, event, outcome, pause=pause)
            await asyncio.sleep(pause)
        self._handle_failure(pending, trigger, event, outcome)

    def _acknowledge(self, pending: PendingDelivery, reply: Envelope | None) -> None:
        deliveries = self._outbox.acknowledge(pending, reply, self._list_matching_triggers(reply) if reply else ())
        if reply:
            self._enqueue_accepted(reply, deliveries)

    def _handle_failure(self, pending: PendingDelivery, trigger: Trigger, event: Envelope, outcome: PostResult) -> None:
        if trigger.policy.dead_letter_url is None:
            self._outbox.acknowledge(pending)
            self._report_outcome("dropped", trigger, event, outcome)
            return
        self._report_outcome("dead letter", trigger, event, outcome)
        self._enqueue(
            [
                self._outbox.mark_dead_letter(
                    pending, Failure(trigger.subscriber_url, outcome.status, outcome.error_data)
                )
            ]
        )

    async def _deliver_dead_letter(self, pending: PendingDelivery, failure: Failure) -> None:
        """Deliver a dead letter to its sink; retry without limit unless the sink rejects it permanently.

        The sink's reply is ignored, as on Knative.
        """
        trigger, event = self._triggers[pending.trigger], self._outbox.read_event(pending.sequence)
        if trigger.policy.dead_letter_url is None:
            self._handle_failure(pending, trigger, event, PostResult(failure.code))
            return
        dead_letter = event.with_extensions(
            dead_letters.build_extensions(failure.destination, failure.code, failure.data)
        )
        sink, backoff = trigger.policy.dead_letter_url, generate_delays(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while not (
            outcome := await self._post_attempt(trigger, sink, dead_letter, self._sink_semaphores[sink])
        ).is_accepted:
            if not outcome.is_retryable:
                self._outbox.acknowledge(pending)
                self._report_outcome("dropped", trigger, event, outcome)
                return
            pause = next(backoff)
            self._report_outcome("dead letter not delivered", trigger, event, outcome, pause=pause)
            await asyncio.sleep(pause)
        self._report_outcome("dead letter delivered", trigger, event, outcome)
        self._outbox.acknowledge(pending)

    async def _post_attempt(
        self, trigger: Trigger, url: str, event: Envelope, semaphore: asyncio.Semaphore
    ) -> PostResult:
        async with semaphore, self._server_semaphores[urlsplit(url).netloc]:
            await self._started.wait()
            self._in_flight += 1
            try:
                with self._metrics.in_flight.track_inprogress():
                    outcome = await post_envelope(self._session, url, event, trigger.policy.timeout_seconds)
            finally:
                self._in_flight -= 1
        self._metrics.duration_seconds.labels(trigger.name).observe(outcome.duration_seconds)
        return outcome

    def _report_outcome(
        self, message: str, trigger: Trigger, event: Envelope, outcome: PostResult, **extra_fields: float
    ) -> None:
        """Count and log the outcome of a delivery attempt."""
        self._metrics.attempts.labels(trigger.name, message).inc()
        fields: dict[str, Any] = {"trigger": trigger.name, "status": outcome.status, **extra_fields}
        fields["ms"] = round(1000 * outcome.duration_seconds, 2)
        if not outcome.is_delivered:
            fields["error"] = outcome.body.decode(errors="replace")[:MAX_ERROR_CHARACTERS]
        log(message, LOG_LEVELS[message], **event.build_log_fields(), **fields)
