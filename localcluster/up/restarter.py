"""Restarts servers that exit unexpectedly, with an exponential backoff, as a kubelet restarts containers.

One thread per server waits for the process to exit. A server that was stopped with `kill` or `stop` stays down until it
is started again.
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
"""The first and the longest backoff in seconds; the first restart is immediate, and then the backoff doubles.

A kubelet does the same with `ReduceDefaultCrashLoopBackOffDecay`.
"""
TURN_SECONDS, TURN_LOOK_SECONDS = 15.0, 0.1
"""How long a restart waits for `Server.may_restart` at most, and the poll interval, in seconds."""
LONG_LIFE = 120.0
"""Seconds of uptime after which the next exit counts as the first again."""


@dataclass(frozen=True)
class Record:
    """The state of one server; times are seconds since the epoch.

    Attributes:
        name: The server's name.
        pid: The process id of the latest process, which may have exited.
        log: The path of its log.
        restarts: The number of restarts.
        ended: How the previous process exited, or the latest one while the server is down; "" if none has exited.
        ended_at: When that process exited.
        due: When the next restart is due while the server is down, else None.
    """

    name: str
    pid: int
    log: str
    restarts: int = 0
    ended: str = ""
    ended_at: float = 0.0
    due: float | None = None


def restart_pauses() -> Iterator[float]:
    """Yield the backoff after each exit in a crash loop, in seconds: none after the first exit."""
    return chain((0.0,), pauses(FIRST_PAUSE, LONGEST_PAUSE))


def description(status: int) -> str:
    """Return a description of a process's return code, as `subprocess` gives it."""
    if status >= 0:
        return f"exit status {status}"
    names = {number.value: number.name for number in signal.Signals}  # real-time signals have no names
    return f"killed by {names.get(-status, f'signal {-status}')}"


class Kept:
    """A server that is restarted, with its exits and its backoff.

    Attributes:
        started: The time of the latest start, by the monotonic clock.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._pauses = restart_pauses()
        self._restarts = 0
        self.started = time.monotonic()
        self._ended, self._ended_at = "", 0.0
        self._due: float | None = None

    def record(self) -> Record:
        """Return the current state."""
        server = self.server
        return Record(server.name, server.pid, str(server.log), self._restarts, self._ended, self._ended_at, self._due)

    def end(self, how: str, lived: float) -> float:
        """Record an exit after `lived` seconds; return the backoff before the next start."""
        if lived >= LONG_LIFE:
            self._pauses = restart_pauses()
        pause = next(self._pauses)
        self._ended, self._ended_at = how, time.time()
        self._due = self._ended_at + pause
        return pause

    def restarted(self) -> None:
        """Record a restart."""
        self._restarts += 1
        self.started, self._due = time.monotonic(), None

    def forget(self) -> None:
        """Record that the server was stopped on purpose: its next unexpected exit counts as the first."""
        self._pauses, self._due = restart_pauses(), None
        self.started = time.monotonic()


class Keeper:
    """Restarts servers until it is stopped.

    Args:
        changed: Called with the records of all servers after each change, one call at a time.
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
        """Restart these servers, too; they must have been started."""
        added = [Kept(server) for server in servers]
        with self._lock:
            self._kept += added
        self._note()
        for kept in added:
            name = f"keeper of {kept.server.name}"
            threading.Thread(target=self._run, args=(kept,), name=name, daemon=True).start()

    def records(self) -> list[Record]:
        """Return the current records of all servers."""
        with self._lock:
            return [kept.record() for kept in self._kept]

    def stop(self) -> None:
        """Stop restarting servers; the threads end with their servers."""
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
        """Restart the server after its backoff; return whether it runs. A failed start counts as an exit."""
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
                kept.started = time.monotonic()  # a failed start has no uptime
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
