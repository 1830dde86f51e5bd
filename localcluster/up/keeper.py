"""Restarts servers that end by themselves, with a growing pause, as a kubelet restarts containers.

Each server has a thread that waits for the end of its process. A server that was ended by its `kill` or `stop` stays
down until somebody starts it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from types import TracebackType

from kube.backoff import pauses
from localcluster.processes import Server

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds: none after the first end, then these, doubling; a kubelet's with `ReduceDefaultCrashLoopBackOffDecay`."""
TURN_SECONDS, TURN_LOOK_SECONDS = 15.0, 0.1
"""How long a restart waits for its turn (`Server.may_restart`) at most, and how often it looks."""
LONG_LIFE = 120.0
"""Seconds after which an end counts as the first again."""


@dataclass(frozen=True)
class Record:
    """What is known of one server; times are seconds since the epoch.

    Attributes:
        pid: of the latest process, which may have ended.
        restarts: how often it was started again.
        ended: how the process before this one ended, or this one while the server is down; "" if none has.
        due: when it is started again while it is down, else None.
    """

    name: str
    pid: int
    log: str
    restarts: int = 0
    ended: str = ""
    ended_at: float = 0.0
    due: float | None = None


def restart_pauses() -> Iterator[float]:
    """Seconds to wait after each of the ends that come soon one after another: none after the first."""
    return chain((0.0,), pauses(FIRST_PAUSE, LONGEST_PAUSE))


def description(status: int) -> str:
    """How a process ended, in words; in: its return code as `subprocess` gives it."""
    if status >= 0:
        return f"exit status {status}"
    names = {number.value: number.name for number in signal.Signals}  # those of real time have none
    return f"killed by {names.get(-status, f'signal {-status}')}"


class Kept:
    """One server that is kept, and the story of its ends.

    Attributes:
        started: when it was started last, by the monotonic clock.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._pauses = restart_pauses()
        self._restarts = 0
        self.started = time.monotonic()
        self._ended, self._ended_at = "", 0.0
        self._due: float | None = None

    def record(self) -> Record:
        """Give what is known now."""
        server = self.server
        return Record(server.name, server.pid, str(server.log), self._restarts, self._ended, self._ended_at, self._due)

    def end(self, how: str, lived: float) -> float:
        """Note an end after so many seconds; gives the seconds to wait before the next start."""
        if lived >= LONG_LIFE:
            self._pauses = restart_pauses()
        pause = next(self._pauses)
        self._ended, self._ended_at = how, time.time()
        self._due = self._ended_at + pause
        return pause

    def restarted(self) -> None:
        """Note that it runs again."""
        self._restarts += 1
        self.started, self._due = time.monotonic(), None

    def forget(self) -> None:
        """Note that somebody ended it on purpose: its next end by itself is a first one."""
        self._pauses, self._due = restart_pauses(), None
        self.started = time.monotonic()


class Keeper:
    """Keeps servers running until it is stopped.

    In: what is called with the records of all kept servers after each change, one call at a time.
    """

    def __init__(self, changed: Callable[[list[Record]], None] = lambda records: None) -> None:
        self._changed = changed
        self._kept: list[Kept] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def keep(self, servers: Iterable[Server]) -> None:
        """Keep these servers, too; they have been started."""
        added = [Kept(server) for server in servers]
        with self._lock:
            self._kept += added
        self._note()
        for kept in added:
            name = f"keeper of {kept.server.name}"
            threading.Thread(target=self._run, args=(kept,), name=name, daemon=True).start()

    def records(self) -> list[Record]:
        """Give what is known now of all kept servers."""
        with self._lock:
            return [kept.record() for kept in self._kept]

    def stop(self) -> None:
        """Restart nothing from now on; the threads end with their servers."""
        with self._lock:
            self._ending.set()

    def _run(self, kept: Kept) -> None:
        server = kept.server
        while not self._ending.is_set():
            process = server.await_start()
            status = process.wait()
            by_itself = server.wanted.is_set() and server.process is process
            if not by_itself or not self._restart(kept, description(status)):
                kept.forget()

    def _restart(self, kept: Kept, how: str) -> bool:
        """Restart it when its pause is over; tells whether it runs. A start that fails is an end, too."""
        while True:
            with self._lock:
                pause = kept.end(how, time.monotonic() - kept.started)
            self._note()
            self._ending.wait(pause)
            self._await_turn(kept.server)
            try:
                with self._lock:
                    if self._ending.is_set() or not kept.server.restart():
                        return False
                    kept.restarted()
            except OSError as error:
                how = f"not started: {error}"
                kept.started = time.monotonic()  # this start lived for no time at all
                continue
            self._note()
            return True

    def _await_turn(self, server: Server) -> None:
        deadline = time.monotonic() + TURN_SECONDS
        while not server.may_restart() and time.monotonic() < deadline:
            if self._ending.wait(TURN_LOOK_SECONDS):
                return

    def _note(self) -> None:
        with self._lock:
            self._changed([kept.record() for kept in self._kept])
