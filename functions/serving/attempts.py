"""Publishes every attempt to `record`: the function, the event, the duration and the response.

Only the function knows these facts, so it publishes them itself. It also publishes, as dead letters, the events that it
rejects. Publishing never delays a step: the step only appends its attempt to a queue. A separate thread converts
attempts to events and posts them to `$RECORD` in batches. If `$RECORD` is unset, nothing is published.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage
from prometheus_client import Counter

from eventing import extensions
from eventing.http_binding import encode_binary, encode_structured
from eventing.journal.entries import REDRIVE_PREFIX, Attempt, build_attempts_event
from eventing.signatures import sign_event
from kube.backoff import generate_delays

if TYPE_CHECKING:
    from requests import Session

BATCH_DELAY_SECONDS = 0.5
"""Seconds to wait for more attempts before a batch is published."""
MAX_ATTEMPTS_PER_EVENT = 100
"""Maximum number of attempts in one event; such an event is about 100 KiB."""
MAX_QUEUED_ATTEMPTS, MAX_QUEUED_ATTEMPT_BYTES = 5000, 24 * 2**20
"""Maximum number and total bytes of queued attempts while `record` is unavailable.

Beyond this limit, the oldest attempts are dropped.
"""
MAX_QUEUED_DEAD_LETTERS, MAX_QUEUED_DEAD_LETTER_BYTES = 100, 8 * 2**20
"""Maximum number and total bytes of queued dead letters, each of which may be up to 2 MiB.

Beyond this limit, the oldest dead letters are dropped.
"""
ATTEMPT_OVERHEAD_BYTES = 500
"""Approximate size of an attempt without its texts and replies, and of a reply that is not in the response."""
MAX_BACKOFF_SECONDS = 10.0
"""Maximum backoff in seconds while `record` is unavailable; each backoff is twice the previous one."""
FLUSH_TIMEOUT_SECONDS, LOCAL_FLUSH_TIMEOUT_SECONDS = 80.0, 2.0
"""Seconds for publishing the last attempts when the process ends: by default, and if `record` runs on the same host.

In the default time, a `record` that the same drain evicts starts on another node, even if that node must pull the
image first. The default is less than a pod's grace period (120 s), and less than what is left of it after Serving has
waited 30 s for late requests. A `record` on the same host stops at the same time as the other processes.
"""
LOCAL_URL_PREFIXES = ("http://127.0.0.1:", "http://localhost:")
CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS = 1.0, 5.0
"""Timeouts in seconds: for the connection, which a deleted pod never accepts, and for the response."""
SPLIT_STATUSES = (400, 413)
"""HTTP statuses that `record` returns if it cannot store one attempt of a batch, or if the batch is too large."""
ATTEMPTS_LOST = Counter(
    "nodemaintenance_attempts_lost_total",
    "Attempts that are missing in the journal, because the journal was unavailable for too long",
)
DEAD_LETTERS_LOST = Counter(
    "nodemaintenance_dead_letters_lost_total",
    "Dead letters that functions posted and that are missing in the journal, because record refused them or the "
    "journal was unavailable for too long",
)
log = logging.getLogger("functions")
Item = TypeVar("Item")


class BoundedQueue(Generic[Item]):
    """Thread-safe queue that keeps the newest items within limits for their number and total size."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items, self._max_bytes = max_items, max_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item, size: int) -> int:
        """Enqueue an item of `size` bytes; drop the oldest items beyond the limits, and return their number."""
        with self._lock:
            self._items.append((item, size))
            self._bytes += size
            lost = 0
            while len(self._items) > self._max_items or self._bytes > self._max_bytes:
                self._bytes -= self._items.popleft()[1]
                lost += 1
            return lost

    def take(self, max_items: int) -> list[Item]:
        """Remove and return the oldest items, at most `max_items`."""
        with self._lock:
            taken = [self._items.popleft() for _ in range(min(max_items, len(self._items)))]
            self._bytes -= sum(size for _, size in taken)
            return [item for item, _ in taken]


class OngoingAttempt:
    """Context manager for one execution of a function on an event: it times the block and publishes the attempt.

    The block sets the outcome: `replies`, `status`, `error`, and `response_bytes`, the size of the response in bytes.
    If the block raises, the status is 500.
    """

    def __init__(self, function: str, event: BaseCloudEvent, publisher: Publisher) -> None:
        self.function, self.event, self._publisher = function, event, publisher
        self.replies: list[BaseCloudEvent] = []
        self.status, self.error = 500, ""
        self.response_bytes = 0
        self.started_at, self.duration_seconds = 0.0, 0.0

    def __enter__(self) -> OngoingAttempt:
        self.started_at, self._started_clock = time.time(), time.perf_counter()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.duration_seconds = time.perf_counter() - self._started_clock
        if error_type is not None:
            self.error = f"{error_type.__name__}: {error}"
        if self.function != "record":
            self._publisher.add_attempt(self)

    def build_finished_attempt(self) -> FinishedAttempt:
        """Return the finished attempt without its event, because an event may be up to 2 MiB."""
        event, replay_name = self.event, next(iter(extensions.get_replay_extensions(self.event).values()), None)
        # The sender may have chosen an empty name, or a name that is reserved for redrives.
        needs_prefix = replay_name is not None and (not replay_name or replay_name.lower().startswith(REDRIVE_PREFIX))
        replay = f"replay {replay_name}" if needs_prefix else replay_name or ""
        event_key, started_at = (
            (event.get_source(), event.get_id()),
            datetime.fromtimestamp(self.started_at, timezone.utc),
        )
        attempt = Attempt(
            *event_key, self.function, started_at, round(self.duration_seconds, 6), self.status, (), self.error, replay
        )
        return FinishedAttempt(attempt, self.replies, self.response_bytes)


@dataclass(frozen=True)
class FinishedAttempt:
    """A finished attempt; its replies are encoded only when the attempt is published."""

    attempt: Attempt
    replies: list[BaseCloudEvent]
    response_bytes: int

    @property
    def estimated_bytes(self) -> int:
        """Return the attempt's approximate size in bytes."""
        texts = (self.attempt.source, self.attempt.event, self.attempt.error, self.attempt.replay)
        return ATTEMPT_OVERHEAD_BYTES * (1 + len(self.replies)) + self.response_bytes + sum(map(len, texts))

    def build_attempt(self) -> Attempt:
        """Return the attempt in the journal's format."""
        return replace(self.attempt, replies=tuple(json.loads(encode_structured(reply).body) for reply in self.replies))


class Publisher:
    """Publishes this process's attempts to `url`; if `url` is empty, drops them.

    `flush_seconds` is the time limit of `close`; the default depends on the URL: `FLUSH_TIMEOUT_SECONDS` or
    `LOCAL_FLUSH_TIMEOUT_SECONDS`.
    """

    def __init__(self, url: str, flush_seconds: float | None = None) -> None:
        default_seconds = LOCAL_FLUSH_TIMEOUT_SECONDS if url.startswith(LOCAL_URL_PREFIXES) else FLUSH_TIMEOUT_SECONDS
        self._url, self._flush_seconds = url, default_seconds if flush_seconds is None else flush_seconds
        self._deadline = math.inf
        self._attempts: BoundedQueue[FinishedAttempt] = BoundedQueue(MAX_QUEUED_ATTEMPTS, MAX_QUEUED_ATTEMPT_BYTES)
        self._dead_letters: BoundedQueue[HTTPMessage] = BoundedQueue(
            MAX_QUEUED_DEAD_LETTERS, MAX_QUEUED_DEAD_LETTER_BYTES
        )
        self._wakeup, self._closing = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._close_callbacks: list[Callable[[], None]] = []

    @classmethod
    def from_environment(cls) -> Publisher:
        """Build a publisher for the function `record` at `$RECORD`."""
        return cls(os.environ.get("RECORD", ""))

    def add_attempt(self, attempt: OngoingAttempt) -> None:
        """Enqueue an attempt without blocking."""
        if not self._url:
            return
        finished = attempt.build_finished_attempt()
        if lost := self._attempts.append(finished, finished.estimated_bytes):
            ATTEMPTS_LOST.inc(lost)
        self._wake_thread()

    def add_dead_letter(self, dead_letter: BaseCloudEvent) -> None:
        """Enqueue a rejected event without blocking."""
        if not self._url:
            return
        message = encode_binary(dead_letter)
        if lost := self._dead_letters.append(message, len(message.body) + sum(map(len, message.headers.values()))):
            DEAD_LETTERS_LOST.inc(lost)
        self._wake_thread()

    def _wake_thread(self) -> None:
        if not self._wakeup.is_set():
            self._wakeup.set()
        if self._thread is None:
            self._start_thread()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Register a callback that runs when the process ends, and may add last attempts."""
        self._close_callbacks.append(callback)

    def close(self) -> None:
        """Publish the remaining attempts until the time limit.

        While a node is drained, `record` may be unavailable because it is moving to another node.
        """
        for callback in self._close_callbacks:
            callback()
        self._deadline = time.monotonic() + self._flush_seconds
        self._closing.set()
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join(self._flush_seconds)

    def _start_thread(self) -> None:
        """Start the thread on the first attempt, because the server may fork before the first attempt."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_publisher, name="attempts", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _run_publisher(self) -> None:
        # The late import keeps the start of a function 0.1 s shorter.
        from requests import Session

        with Session() as session:
            while not self._closing.is_set():
                self._wakeup.wait()
                self._closing.wait(BATCH_DELAY_SECONDS)
                self._wakeup.clear()
                self._publish_all(session)
            self._publish_all(session)  # Publish the attempts that were added during the last publication.

    def _publish_all(self, session: Session) -> None:
        """Publish until both queues are empty or the process ends."""
        while self._attempts:
            if not self._publish_attempts(session, self._take_batch()):
                break  # The process is ending.
        while dead_letters := self._dead_letters.take(1):
            status = self._post_until_answered(session, dead_letters[0])
            if status >= 400:
                DEAD_LETTERS_LOST.inc()
                log.error("record rejected a dead letter: HTTP %s", status)
            if not status:
                return

    def _take_batch(self) -> list[Attempt]:
        """Take the oldest attempts off the queue, at most `MAX_ATTEMPTS_PER_EVENT`."""
        return [finished.build_attempt() for finished in self._attempts.take(MAX_ATTEMPTS_PER_EVENT)]

    def _publish_attempts(self, session: Session, attempts: list[Attempt]) -> bool:
        """Publish attempts in one event, or in halves after a rejection; return False if the process ends first."""
        status = self._post_until_answered(session, encode_binary(sign_event(build_attempts_event(attempts))))
        if status in SPLIT_STATUSES and len(attempts) > 1:
            half = len(attempts) // 2
            return self._publish_attempts(session, attempts[:half]) and self._publish_attempts(session, attempts[half:])
        if status >= 400:
            ATTEMPTS_LOST.inc(len(attempts))
            log.error("record rejected %d attempts: HTTP %s", len(attempts), status)
        return status > 0

    def _post_until_answered(self, session: Session, message: HTTPMessage) -> int:
        """Post until the response has a status below 500; return that status, or 0 if the process ends first."""
        backoff = generate_delays(BATCH_DELAY_SECONDS, MAX_BACKOFF_SECONDS)
        while (status := _post(session, self._url, message.headers, message.body)) >= 500:
            log.warning(
                "record does not accept attempts: HTTP %s; %d more attempts are queued", status, len(self._attempts)
            )
            if not self._wait_backoff(next(backoff)):
                return 0
        return status

    def _wait_backoff(self, seconds: float) -> bool:
        """Wait `seconds`, or less while the process ends; return False once the time limit of `close` has expired."""
        if not self._closing.is_set():
            self._closing.wait(seconds)
        else:
            time.sleep(BATCH_DELAY_SECONDS)
        return time.monotonic() < self._deadline


def _post(session: Session, url: str, headers: dict[str, str], body: bytes) -> int:
    """Post and return the status of the response.

    Returns 503 if there was no response and 422 if the URL is invalid, so that no exception ends the thread.
    """
    from requests import RequestException

    try:
        return session.post(
            url, body, headers=headers, timeout=(CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS)
        ).status_code
    except ValueError:
        return 422
    except RequestException:
        return 503
