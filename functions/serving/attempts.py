"""Publishes every attempt to `record`, with its function, event, duration and response; publishes dead letters as well.

An attempt is one execution of a function for one event. Only the function's process knows these facts, so it publishes
them itself. It also publishes the events that the function rejects, as dead letters. Publishing does not delay the
response, because the attempt is only appended to a queue. A background thread posts the queued attempts to `$RECORD` in
batches. If `$RECORD` is unset, no attempt is published.
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
"""Seconds to collect attempts before a batch is published."""
MAX_ATTEMPTS_PER_EVENT = 100
"""Maximum number of attempts in one `attempts.made` event, whose size is then about 100 KiB."""
MAX_QUEUED_ATTEMPTS, MAX_QUEUED_ATTEMPT_BYTES = 5000, 24 * 2**20
"""Maximum number and total size of the attempts that are queued while `record` is unavailable.

Beyond these limits, the oldest attempts are dropped.
"""
MAX_QUEUED_DEAD_LETTERS, MAX_QUEUED_DEAD_LETTER_BYTES = 100, 8 * 2**20
"""Maximum number and total size of the queued dead letters, each of which may have up to 2 MiB.

Beyond these limits, the oldest dead letters are dropped.
"""
ATTEMPT_OVERHEAD_BYTES = 500
"""Approximate size of an attempt without its strings and replies, and also of each reply."""
MAX_BACKOFF_SECONDS = 10.0
"""Maximum of the exponential backoff, in seconds, while `record` is unavailable."""
FLUSH_TIMEOUT_SECONDS, LOCAL_FLUSH_TIMEOUT_SECONDS = 80.0, 2.0
"""Seconds for publishing the last attempts at process exit: by default, and if `record` runs on the same host.

A drain may evict the function and `record` at the same time. By default, the function therefore waits until `record`
has started on another node, including an image pull. The default fits into the pod's grace period (120 s), even after
Knative Serving has waited 30 s for late requests. On the same host, `record` stops together with the function, so
waiting would not help.
"""
LOCAL_URL_PREFIXES = ("http://127.0.0.1:", "http://localhost:")
CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS = 1.0, 5.0
"""Timeouts in seconds for connecting, because a deleted pod never responds, and for the response."""
SPLIT_STATUSES = (400, 413)
"""HTTP statuses after which a batch is halved: `record` cannot store one of its attempts, or the batch is too large."""
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
    """Thread-safe queue with a maximum length and total size, which drops its oldest items beyond these limits."""

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
        """Dequeue and return at most `max_items` items, the oldest first."""
        with self._lock:
            taken = [self._items.popleft() for _ in range(min(max_items, len(self._items)))]
            self._bytes -= sum(size for _, size in taken)
            return [item for item, _ in taken]


class OngoingAttempt:
    """Context manager that measures one execution of a function for an event, and publishes it as an attempt.

    Code in the `with` block sets the outcome: `replies`, `status`, `error`, and `response_bytes` (the size of the
    response body). If the block raises an exception, the status is 500.
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
        """Return the finished attempt, without its event, because an event may have up to 2 MiB."""
        event, replay_name = self.event, next(iter(extensions.get_replay_extensions(self.event).values()), None)
        # The sender may have chosen an empty replay name, or one with the prefix that is reserved for redrives.
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
    """A finished attempt in the queue; its replies are encoded only when the attempt is published."""

    attempt: Attempt
    replies: list[BaseCloudEvent]
    response_bytes: int

    @property
    def estimated_bytes(self) -> int:
        """Return the attempt's approximate size in bytes."""
        texts = (self.attempt.source, self.attempt.event, self.attempt.error, self.attempt.replay)
        return ATTEMPT_OVERHEAD_BYTES * (1 + len(self.replies)) + self.response_bytes + sum(map(len, texts))

    def build_attempt(self) -> Attempt:
        """Return the attempt with encoded replies, as the journal stores it."""
        return replace(self.attempt, replies=tuple(json.loads(encode_structured(reply).body) for reply in self.replies))


class Publisher:
    """Publisher of this process's attempts and dead letters to `url`; if `url` is empty, it drops them.

    `flush_seconds` is the timeout of `close`. The default is `LOCAL_FLUSH_TIMEOUT_SECONDS` for a URL on the same host,
    and otherwise `FLUSH_TIMEOUT_SECONDS`.
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
        """Build a publisher that posts to the URL `$RECORD`, at which `record` is served."""
        return cls(os.environ.get("RECORD", ""))

    def add_attempt(self, attempt: OngoingAttempt) -> None:
        """Enqueue an attempt without blocking."""
        if not self._url:
            return
        finished = attempt.build_finished_attempt()
        if lost := self._attempts.append(finished, finished.estimated_bytes):
            ATTEMPTS_LOST.inc(lost)
        self._wake_publisher_thread()

    def add_dead_letter(self, dead_letter: BaseCloudEvent) -> None:
        """Enqueue a rejected event without blocking."""
        if not self._url:
            return
        message = encode_binary(dead_letter)
        if lost := self._dead_letters.append(message, len(message.body) + sum(map(len, message.headers.values()))):
            DEAD_LETTERS_LOST.inc(lost)
        self._wake_publisher_thread()

    def _wake_publisher_thread(self) -> None:
        if not self._wakeup.is_set():
            self._wakeup.set()
        if self._thread is None:
            self._start_publisher_thread()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Register a callback that `close` calls first, so that it can add last attempts."""
        self._close_callbacks.append(callback)

    def close(self) -> None:
        """Publish the queued attempts and dead letters, for at most the flush timeout.

        During a drain, `record` may be unavailable while its pod moves to another node.
        """
        for callback in self._close_callbacks:
            callback()
        self._deadline = time.monotonic() + self._flush_seconds
        self._closing.set()
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join(self._flush_seconds)

    def _start_publisher_thread(self) -> None:
        """Start the thread; called for the first attempt, because the server may fork before."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_publisher, name="attempts", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _run_publisher(self) -> None:
        # This import is deferred because it would delay the function's start by 0.1 s.
        from requests import Session

        with Session() as session:
            while not self._closing.is_set():
                self._wakeup.wait()
                self._closing.wait(BATCH_DELAY_SECONDS)
                self._wakeup.clear()
                self._publish_all(session)
            self._publish_all(session)  # Publish the attempts that were added during the last publication.

    def _publish_all(self, session: Session) -> None:
        """Publish until both queues are empty or the flush timeout of `close` has expired."""
        while self._attempts:
            if not self._publish_attempts(session, self._dequeue_batch()):
                break  # The flush timeout of `close` has expired.
        while dead_letters := self._dead_letters.take(1):
            status = self._post_until_answered(session, dead_letters[0])
            if status >= 400:
                DEAD_LETTERS_LOST.inc()
                log.error("record rejected a dead letter: HTTP %s", status)
            if not status:
                return

    def _dequeue_batch(self) -> list[Attempt]:
        """Dequeue at most `MAX_ATTEMPTS_PER_EVENT` attempts, the oldest first."""
        return [finished.build_attempt() for finished in self._attempts.take(MAX_ATTEMPTS_PER_EVENT)]

    def _publish_attempts(self, session: Session, attempts: list[Attempt]) -> bool:
        """Publish the attempts in one event; if `record` rejects it, publish each half in its own event.

        Returns False if the flush timeout of `close` expires first.
        """
        status = self._post_until_answered(session, encode_binary(sign_event(build_attempts_event(attempts))))
        if status in SPLIT_STATUSES and len(attempts) > 1:
            half = len(attempts) // 2
            return self._publish_attempts(session, attempts[:half]) and self._publish_attempts(session, attempts[half:])
        if status >= 400:
            ATTEMPTS_LOST.inc(len(attempts))
            log.error("record rejected %d attempts: HTTP %s", len(attempts), status)
        return status > 0

    def _post_until_answered(self, session: Session, message: HTTPMessage) -> int:
        """Post the message until the response status is below 500, and return that status.

        Returns 0 if the flush timeout of `close` expires first.
        """
        backoff = generate_delays(BATCH_DELAY_SECONDS, MAX_BACKOFF_SECONDS)
        while (status := _post(session, self._url, message.headers, message.body)) >= 500:
            log.warning(
                "record does not accept attempts: HTTP %s; %d more attempts are queued", status, len(self._attempts)
            )
            if not self._wait_backoff(next(backoff)):
                return 0
        return status

    def _wait_backoff(self, seconds: float) -> bool:
        """Wait `seconds`, or less during `close`; return False if the flush timeout of `close` has expired."""
        if not self._closing.is_set():
            self._closing.wait(seconds)
        else:
            time.sleep(BATCH_DELAY_SECONDS)
        return time.monotonic() < self._deadline


def _post(session: Session, url: str, headers: dict[str, str], body: bytes) -> int:
    """Send a POST request and return the response status.

    Returns 503 if there was no response, and 422 if the URL is invalid, so that no exception ends the thread.
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
