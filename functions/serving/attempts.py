"""Publishes every attempt to `record`: the function, the event, the duration and the response.

Only the function knows these, so it publishes them itself. It also publishes events that it rejected, as dead letters.
No step waits for that: an attempt only costs an append to a queue. A separate thread converts attempts to events and
posts them to `$RECORD` in batches, however long that takes. Without `$RECORD` nothing is published.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage

from eventing import replay_extensions
from eventing.journal.entries import REDRIVE, Attempt, attempts_event
from eventing.signatures import signed
from eventing.http_binding import binary, structured
from functions.serving.bounded_queue import Waiting
from functions.serving.metrics import ATTEMPTS_LOST, LETTERS_LOST
from kube.backoff import pauses

if TYPE_CHECKING:
    from requests import Session

SOON = 0.5
"""Seconds to wait for more attempts before a batch is published."""
TOGETHER = 100
"""Maximum attempts in one event, which then has about 100 KiB."""
KEPT, KEPT_BYTES = 5000, 24 * 2**20
"""Maximum number and bytes of queued attempts while `record` is unavailable.

Beyond that, the oldest are dropped.
"""
LETTERS, LETTERS_BYTES = 100, 8 * 2**20
"""Maximum number and bytes of queued dead letters; one may have 2 MiB.

Beyond that, the oldest are dropped.
"""
SIZE = 500
"""Approximate bytes of an attempt, without its texts and replies.

A reply that was published instead of returned needs about the same.
"""
LONGEST_PAUSE = 10.0
"""Maximum backoff in seconds while `record` is unavailable; each backoff is twice the previous one."""
CLOSING_SECONDS, CLOSING_BESIDE = 20.0, 2.0
"""Time for publishing the last attempts when the process ends: usually, and if `record` runs on the same host.

The first is less than the grace period of a Deployment's pod (30 s), and more than Knative Serving grants. A `record`
on the same host ends together with all other processes.
"""
BESIDE = ("http://127.0.0.1:", "http://localhost:")
CONNECTING, ANSWERING = 1.0, 5.0
"""Timeouts in seconds: for the connection, which a deleted pod never accepts, and for the response."""
BROKEN = (400, 413)
"""Statuses of `record` if it cannot store one of the attempts in a batch, or if the batch is too large."""
log = logging.getLogger("functions")


class OngoingAttempt:
    """Context manager for one execution of a function on an event: it measures the block, and publishes the attempt.

    The block sets the outcome: `replies`, `status`, `error`, and `answered`, the size of the response in bytes. If the
    block raises, the status is 500.
    """

    def __init__(self, function: str, event: BaseCloudEvent, publisher: Publisher) -> None:
        self.function, self.event, self._publisher = function, event, publisher
        self.replies: list[BaseCloudEvent] = []
        self.status, self.error = 500, ""
        self.answered = 0
        self.at, self.seconds = 0.0, 0.0

    def __enter__(self) -> OngoingAttempt:
        self.at, self._started = time.time(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._started
        if kind is not None:
            self.error = f"{kind.__name__}: {error}"
        if self.function != "record":
            self._publisher.add(self)

    def made(self) -> Made:
        """Return the finished attempt without the event, which may have 2 MiB."""
        event, chosen = self.event, next(iter(replay_extensions.of(self.event).values()), None)
        is_odd = chosen is not None and (not chosen or chosen.lower().startswith(REDRIVE))  # chosen by the sender
        replay = f"replay {chosen}" if is_odd else chosen or ""
        key, at = (event.get_source(), event.get_id()), datetime.fromtimestamp(self.at, timezone.utc)
        attempt = Attempt(*key, self.function, at, round(self.seconds, 6), self.status, (), self.error, replay)
        return Made(attempt, self.replies, self.answered)


@dataclass(frozen=True)
class Made:
    """A finished attempt; its replies are encoded only when it is published."""

    attempt: Attempt
    replies: list[BaseCloudEvent]
    answered: int

    @property
    def size(self) -> int:
        """Return the approximate size in bytes."""
        texts = (self.attempt.source, self.attempt.event, self.attempt.error, self.attempt.replay)
        return SIZE * (1 + len(self.replies)) + self.answered + sum(map(len, texts))

    def finished(self) -> Attempt:
        """Return the attempt in the journal's format."""
        return replace(self.attempt, replies=tuple(json.loads(structured(reply).body) for reply in self.replies))


class Publisher:
    """Publishes the attempts of this process to `url`, or drops them without a URL.

    In: the URL; the time limit of `close` in seconds, by default `CLOSING_SECONDS` or `CLOSING_BESIDE`.
    """

    def __init__(self, url: str, closing: float | None = None) -> None:
        usual = CLOSING_BESIDE if url.startswith(BESIDE) else CLOSING_SECONDS
        self._url, self._closing_seconds = url, usual if closing is None else closing
        self._deadline = math.inf
        self._attempts: Waiting[Made] = Waiting(KEPT, KEPT_BYTES)
        self._letters: Waiting[HTTPMessage] = Waiting(LETTERS, LETTERS_BYTES)
        self._added, self._closing = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last: list[Callable[[], None]] = []

    @classmethod
    def of_environment(cls) -> Publisher:
        """Build a publisher for the function `record` at `$RECORD`."""
        return cls(os.environ.get("RECORD", ""))

    def add(self, attempt: OngoingAttempt) -> None:
        """Enqueue an attempt without blocking."""
        if not self._url:
            return
        made = attempt.made()
        if lost := self._attempts.append(made, made.size):
            ATTEMPTS_LOST.inc(lost)
        self._wake()

    def add_dead_letter(self, letter: BaseCloudEvent) -> None:
        """Enqueue a rejected event without blocking."""
        if not self._url:
            return
        message = binary(letter)
        if lost := self._letters.append(message, len(message.body) + sum(map(len, message.headers.values()))):
            LETTERS_LOST.inc(lost)
        self._wake()

    def _wake(self) -> None:
        if not self._added.is_set():
            self._added.set()
        if self._thread is None:
            self._start()

    def before_end(self, work: Callable[[], None]) -> None:
        """Register a function that adds its last attempts when the process ends."""
        self._last.append(work)

    def close(self) -> None:
        """Publish the remaining attempts until the time limit.

        While a node is drained, `record` may be unavailable because it is moving to another node.
        """
        for work in self._last:
            work()
        self._deadline = time.monotonic() + self._closing_seconds
        self._closing.set()
        self._added.set()
        if self._thread is not None:
            self._thread.join(self._closing_seconds)

    def _start(self) -> None:
        """Start the thread, at the first attempt, because the server may fork before that."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="attempts", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _work(self) -> None:
        from requests import Session  # imported late: it would delay the start of a function by 0.1 s

        with Session() as session:
            while not self._closing.is_set():
                self._added.wait()
                self._closing.wait(SOON)
                self._added.clear()
                self._publish_all(session)
            self._publish_all(session)  # attempts that were added during the last publication

    def _publish_all(self, session: Session) -> None:
        """Publish until both queues are empty or the process ends."""
        while self._attempts:
            if not self._publish(session, self._next_batch()):
                break  # the process ends
        while letters := self._letters.take(1):
            status = self._post_until_answered(session, letters[0])
            if status >= 400:
                LETTERS_LOST.inc()
                log.error("record refuses a dead letter: %s", status)
            if not status:
                return

    def _next_batch(self) -> list[Attempt]:
        """Take the oldest attempts off the queue, at most `TOGETHER`."""
        return [made.finished() for made in self._attempts.take(TOGETHER)]

    def _publish(self, session: Session, attempts: list[Attempt]) -> bool:
        """Publish attempts in one event, or in halves if that is rejected; return False if the process ends before."""
        status = self._post_until_answered(session, binary(signed(attempts_event(attempts))))
        if status in BROKEN and len(attempts) > 1:
            half = len(attempts) // 2
            return self._publish(session, attempts[:half]) and self._publish(session, attempts[half:])
        if status >= 400:
            ATTEMPTS_LOST.inc(len(attempts))
            log.error("record refuses %d attempts: %s", len(attempts), status)
        return status > 0

    def _post_until_answered(self, session: Session, message: HTTPMessage) -> int:
        """Post until there is a status below 500, and return it; return 0 if the process ends before."""
        backoff = pauses(SOON, LONGEST_PAUSE)
        while (status := _post(session, self._url, message.headers, message.body)) >= 500:
            log.warning("record does not accept attempts: %s; %d more wait", status, len(self._attempts))
            if not self._wait(next(backoff)):
                return 0
        return status

    def _wait(self, seconds: float) -> bool:
        """Wait, for a shorter time while the process ends; return False once the time limit of `close` is over."""
        if not self._closing.is_set():
            self._closing.wait(seconds)
        else:
            time.sleep(SOON)
        return time.monotonic() < self._deadline


def _post(session: Session, url: str, headers: dict[str, str], body: bytes) -> int:
    """Post and return the status of the response.

    It is 503 if there was no response, and 422 if the URL is invalid, so that no error ends the thread.
    """
    from requests import RequestException

    try:
        return session.post(url, body, headers=headers, timeout=(CONNECTING, ANSWERING)).status_code
    except ValueError:
        return 422
    except RequestException:
        return 503
