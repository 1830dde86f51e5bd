"""Tells `record` of every run: which function, on which event, how long, with what answer. Only the function knows.

Also of events that were refused, as dead letters.

No step waits for it: a run costs an append to a queue; a thread of its own turns runs into events and posts them to
`$RECORD`, some at a time, for as long as that takes. Without `$RECORD` nothing is told.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from collections import deque
from datetime import datetime, timezone
from types import TracebackType

import requests
from cloudevents.core.base import BaseCloudEvent

from eventing import marks
from eventing.journal.entries import Attempt, attempts_event
from eventing.wire import binary, structured
from functions.serving.metrics import ATTEMPTS_LOST
from kube.backoff import pauses

SOON = 0.5
"""Seconds that a run waits for company."""
TOGETHER = 100
"""Runs in one event, about 100 KiB."""
KEPT = 5000
"""Runs that wait while `record` is away; of more, the oldest are lost. About 20 MB."""
LETTERS = 100
"""Dead letters that wait; of more, the oldest are lost. Up to 2 MiB each."""
LONGEST_PAUSE = 10.0
"""Seconds between two tries while `record` is away, doubling up to this."""
CLOSING_SECONDS = 2.0
TOO_LARGE = 413
log = logging.getLogger("functions")


class Run:
    """One run of a function on an event, a context manager: measured while the block runs, told when it ends.

    What came of it, `replies`, `status` and `error`, is set inside; a block that raises is a 500.
    """

    def __init__(self, function: str, event: BaseCloudEvent, feed: Feed) -> None:
        self.function, self.event, self._feed = function, event, feed
        self.replies: list[BaseCloudEvent] = []
        self.status, self.error = 500, ""
        self.at, self.seconds = 0.0, 0.0

    def __enter__(self) -> Run:
        self.at, self._started = time.time(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._started
        if kind is not None:
            self.error = f"{kind.__name__}: {error}"
        if self.function != "record":
            self._feed.add(self)

    def attempt(self) -> Attempt:
        """The run as the journal keeps it."""
        return Attempt(
            self.event.get_source(),
            self.event.get_id(),
            self.function,
            datetime.fromtimestamp(self.at, timezone.utc),
            round(self.seconds, 6),
            self.status,
            tuple(json.loads(structured(reply).body) for reply in self.replies),
            self.error,
            next(iter(marks.of(self.event).values()), ""),
        )


class Feed:
    """The runs of this process on their way to `url`; with no url it takes them and does nothing."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runs: deque[Run] = deque(maxlen=KEPT)
        self._letters: deque[BaseCloudEvent] = deque(maxlen=LETTERS)
        self._added, self._closing = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_environment(cls) -> Feed:
        """To the function `record` at `$RECORD`."""
        return cls(os.environ.get("RECORD", ""))

    def add(self, run: Run) -> None:
        """Tell of a run, soon. Returns at once."""
        if not self._url:
            return
        if len(self._runs) == KEPT:
            ATTEMPTS_LOST.inc()
        self._runs.append(run)
        self._wake()

    def give_up(self, letter: BaseCloudEvent) -> None:
        """Tell of an event that was refused, soon. Returns at once."""
        if self._url:
            self._letters.append(letter)
            self._wake()

    def _wake(self) -> None:
        if not self._added.is_set():
            self._added.set()
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Tell of what is left, if `record` takes it at once."""
        self._closing.set()
        self._added.set()
        if self._thread is not None:
            self._thread.join(CLOSING_SECONDS)

    def _start(self) -> None:
        """The thread begins with the first run: a server may have forked before it."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="attempts", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _work(self) -> None:
        with requests.Session() as session:
            while not self._closing.is_set():
                self._added.wait()
                self._closing.wait(SOON)
                self._added.clear()
                while (some := self._some()) and self._tell(session, some):
                    pass
                while self._letters and self._deliver(session, self._letters.popleft()):
                    pass

    def _some(self) -> list[Attempt]:
        """The oldest runs, at most so many as go together."""
        return [self._runs.popleft().attempt() for _ in range(min(TOGETHER, len(self._runs)))]

    def _tell(self, session: requests.Session, attempts: list[Attempt]) -> bool:
        """Tell of runs; False when the process ends before that."""
        status = self._deliver(session, attempts_event(attempts))
        if status == TOO_LARGE and len(attempts) > 1:
            half = len(attempts) // 2
            return self._tell(session, attempts[:half]) and self._tell(session, attempts[half:])
        if status >= 400:
            ATTEMPTS_LOST.inc(len(attempts))
            log.error("record refuses %d attempts: %s", len(attempts), status)
        return status > 0

    def _deliver(self, session: requests.Session, event: BaseCloudEvent) -> int:
        """Post until there is an answer: its status, 0 when the process ends before that."""
        message = binary(event)
        backoff = pauses(SOON, LONGEST_PAUSE)
        while (status := _post(session, self._url, message.headers, message.body)) >= 500:
            log.warning("record does not take what it is told: %s; %d more attempts wait", status, len(self._runs))
            if self._closing.wait(next(backoff)):
                return 0
        return status


def _post(session: requests.Session, url: str, headers: dict[str, str], body: bytes) -> int:
    """The answer's status; 503 for none."""
    try:
        return session.post(url, body, headers=headers, timeout=10).status_code
    except requests.RequestException:
        return 503
