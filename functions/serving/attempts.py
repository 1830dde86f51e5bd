"""Publishes every attempt to `record`: which function, on which event, how long, with what answer.

Only the function knows that, and so it is the function that publishes it; also events that it refused, as dead letters.
No step waits for it: an attempt costs an append to a queue; a thread of its own turns attempts into events and posts
them to `$RECORD`, some at a time, for as long as that takes. Without `$RECORD` nothing is published.
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

from eventing import marks
from eventing.journal.entries import REDRIVE, Attempt, attempts_event
from eventing.signatures import signed
from eventing.wire import binary, structured
from functions.serving.bounded_queue import Waiting
from functions.serving.metrics import ATTEMPTS_LOST, LETTERS_LOST
from kube.backoff import pauses

if TYPE_CHECKING:
    from requests import Session

SOON = 0.5
"""Seconds that an attempt waits for company."""
TOGETHER = 100
"""Attempts in one event, about 100 KiB."""
KEPT, KEPT_BYTES = 5000, 24 * 2**20
"""Attempts that wait while `record` is away, and their bytes; of more, the oldest are lost."""
LETTERS, LETTERS_BYTES = 100, 8 * 2**20
"""Dead letters that wait, and their bytes; of more, the oldest are lost. One may have 2 MiB."""
SIZE = 500
"""Bytes of an attempt beside its texts and replies; a reply that was published and not answered takes about as much."""
LONGEST_PAUSE = 10.0
"""Seconds between two tries while `record` is away, doubling up to this."""
CLOSING_SECONDS, CLOSING_BESIDE = 20.0, 2.0
"""For so long the last attempts of a process are tried while it ends: less than the 30 s that the pod of a Deployment
has for that, and more than Knative Serving leaves it. Where `record` is on this machine, it ends with all others."""
BESIDE = ("http://127.0.0.1:", "http://localhost:")
CONNECTING, ANSWERING = 1.0, 5.0
"""Seconds that a try waits for a connection, which no pod that is gone gives, and for the answer."""
BROKEN = (400, 413)
"""What `record` answers where one of many attempts is none it can keep, or all are too large for it."""
log = logging.getLogger("functions")


class OngoingAttempt:
    """One execution of a function on an event, a context manager: timed while the block runs, published at its end.

    Its outcome, `replies`, `status`, `error` and the bytes `answered`, is set inside; a block that raises is a 500.
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
        """What is left of it: without the event, which may have 2 MiB."""
        event, chosen = self.event, next(iter(marks.of(self.event).values()), None)
        is_odd = chosen is not None and (not chosen or chosen.lower().startswith(REDRIVE))  # who posts it chooses
        replay = f"replay {chosen}" if is_odd else chosen or ""
        key, at = (event.get_source(), event.get_id()), datetime.fromtimestamp(self.at, timezone.utc)
        attempt = Attempt(*key, self.function, at, round(self.seconds, 6), self.status, (), self.error, replay)
        return Made(attempt, self.replies, self.answered)


@dataclass(frozen=True)
class Made:
    """An attempt that has ended; its replies are written out when it is published."""

    attempt: Attempt
    replies: list[BaseCloudEvent]
    answered: int

    @property
    def size(self) -> int:
        """Its bytes, roughly."""
        texts = (self.attempt.source, self.attempt.event, self.attempt.error, self.attempt.replay)
        return SIZE * (1 + len(self.replies)) + self.answered + sum(map(len, texts))

    def finished(self) -> Attempt:
        """The attempt as the journal keeps it."""
        return replace(self.attempt, replies=tuple(json.loads(structured(reply).body) for reply in self.replies))


class Publisher:
    """Publishes the attempts of this process to `url`; without one it drops them.

    In: also for how many seconds `close` may take; unset, as long as is of use.
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
        """To the function `record` at `$RECORD`."""
        return cls(os.environ.get("RECORD", ""))

    def add(self, attempt: OngoingAttempt) -> None:
        """Enqueue an attempt. Returns at once."""
        if not self._url:
            return
        made = attempt.made()
        if lost := self._attempts.append(made, made.size):
            ATTEMPTS_LOST.inc(lost)
        self._wake()

    def add_dead_letter(self, letter: BaseCloudEvent) -> None:
        """Enqueue an event that was refused. Returns at once."""
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
        """Have this add its last attempts when the process ends."""
        self._last.append(work)

    def close(self) -> None:
        """Publish what is left, for so long: where a node is drained, `record` may be on its way to another one."""
        for work in self._last:
            work()
        self._deadline = time.monotonic() + self._closing_seconds
        self._closing.set()
        self._added.set()
        if self._thread is not None:
            self._thread.join(self._closing_seconds)

    def _start(self) -> None:
        """The thread begins with the first attempt: a server may have forked before it."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="attempts", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _work(self) -> None:
        from requests import Session  # a tenth of a second that no start of a function should wait for

        with Session() as session:
            while not self._closing.is_set():
                self._added.wait()
                self._closing.wait(SOON)
                self._added.clear()
                self._publish_all(session)
            self._publish_all(session)  # what came while the last of the others was on its way

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
        """The oldest attempts, at most so many as go together."""
        return [made.finished() for made in self._attempts.take(TOGETHER)]

    def _publish(self, session: Session, attempts: list[Attempt]) -> bool:
        """Publish attempts in one event, in halves where that is refused; False when the process ends before."""
        status = self._post_until_answered(session, binary(signed(attempts_event(attempts))))
        if status in BROKEN and len(attempts) > 1:
            half = len(attempts) // 2
            return self._publish(session, attempts[:half]) and self._publish(session, attempts[half:])
        if status >= 400:
            ATTEMPTS_LOST.inc(len(attempts))
            log.error("record refuses %d attempts: %s", len(attempts), status)
        return status > 0

    def _post_until_answered(self, session: Session, message: HTTPMessage) -> int:
        """Post until there is an answer: its status, 0 when the process ends before that."""
        backoff = pauses(SOON, LONGEST_PAUSE)
        while (status := _post(session, self._url, message.headers, message.body)) >= 500:
            log.warning("record does not accept attempts: %s; %d more wait", status, len(self._attempts))
            if not self._wait(next(backoff)):
                return 0
        return status

    def _wait(self, seconds: float) -> bool:
        """Wait, less where the process ends meanwhile; False when its time is up."""
        if not self._closing.is_set():
            self._closing.wait(seconds)
        else:
            time.sleep(SOON)
        return time.monotonic() < self._deadline


def _post(session: Session, url: str, headers: dict[str, str], body: bytes) -> int:
    """The answer's status; 503 for none, 422 for an address of no sense: the thread must outlive it."""
    from requests import RequestException

    try:
        return session.post(url, body, headers=headers, timeout=(CONNECTING, ANSWERING)).status_code
    except ValueError:
        return 422
    except RequestException:
        return 503
