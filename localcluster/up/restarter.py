"""Restarts servers that exit unexpectedly, with an exponential backoff, as a kubelet restarts containers.

One thread per server waits for the server's exit. A server that was stopped with `kill` or `stop` stays down until it
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

from kube.backoff import generate_delays
from localcluster.processes import Server

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 60.0
"""The first and the maximum backoff. The first restart is immediate; then the backoff doubles after each exit.

A kubelet with the feature gate `ReduceDefaultCrashLoopBackOffDecay` does the same.
"""
MAY_RESTART_TIMEOUT_SECONDS, MAY_RESTART_POLL_SECONDS = 15.0, 0.1
"""The maximum time for which a restart waits for `Server.may_restart`, and the poll interval, in seconds."""
BACKOFF_RESET_SECONDS = 120.0
"""Uptime in seconds after which the backoff is reset, so that the next restart is immediate."""


@dataclass(frozen=True)
class ProcessRecord:
    """The recorded state of one server; times are seconds since the epoch.

    Attributes:
        name: The server's name.
        pid: The id of the server's latest process, which may have exited.
        log: The path of the server's log.
        restarts: The number of restarts.
        exit_reason: How the server's latest exit happened; "" if it has not exited yet.
        exited_at: The time of that exit.
        restart_at: The time of the next restart while the server is down, else None.
    """

    name: str
    pid: int
    log: str
    restarts: int = 0
    exit_reason: str = ""
    exited_at: float = 0.0
    restart_at: float | None = None


def iter_restart_backoffs() -> Iterator[float]:
    """Yield the backoff in seconds before each restart in a crash loop, starting with 0."""
    return chain((0.0,), generate_delays(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS))


def describe_exit(status: int) -> str:
    """Describe a process's return code from `subprocess`."""
    if status >= 0:
        return f"exit status {status}"
    names = {number.value: number.name for number in signal.Signals}  # Most real-time signals have no names.
    return f"killed by {names.get(-status, f'signal {-status}')}"


class RestartState:
    """A server's restart state: the number of its restarts, its latest exit and its backoff.

    Attributes:
        started_at: The time of the server's latest start, by the monotonic clock.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._backoffs = iter_restart_backoffs()
        self._restarts = 0
        self.started_at = time.monotonic()
        self._exit_reason, self._exited_at = "", 0.0
        self._restart_at: float | None = None

    def build_record(self) -> ProcessRecord:
        """Return the server's current state as a `ProcessRecord`."""
        server = self.server
        return ProcessRecord(
            server.name,
            server.pid,
            str(server.log),
            self._restarts,
            self._exit_reason,
            self._exited_at,
            self._restart_at,
        )

    def record_exit(self, reason: str, uptime: float) -> float:
        """Record an unexpected exit after `uptime` seconds; return the backoff before the restart."""
        if uptime >= BACKOFF_RESET_SECONDS:
            self._backoffs = iter_restart_backoffs()
        backoff = next(self._backoffs)
        self._exit_reason, self._exited_at = reason, time.time()
        self._restart_at = self._exited_at + backoff
        return backoff

    def record_restart(self) -> None:
        """Record that the server was restarted."""
        self._restarts += 1
        self.started_at, self._restart_at = time.monotonic(), None

    def reset_backoff(self) -> None:
        """Reset the backoff after an intended stop, so that the next unexpected exit counts as the first one."""
        self._backoffs, self._restart_at = iter_restart_backoffs(), None
        self.started_at = time.monotonic()


class Restarter:
    """Restarts servers until it is stopped.

    Args:
        on_change: Called with the records of all servers after each change, one call at a time.
    """

    def __init__(self, on_change: Callable[[list[ProcessRecord]], None] = lambda records: None) -> None:
        self._on_change = on_change
        self._states: list[RestartState] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def __enter__(self) -> Restarter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add_servers(self, servers: Iterable[Server]) -> None:
        """Start watching servers, which must already have been started, and restart them if they exit."""
        added = [RestartState(server) for server in servers]
        with self._lock:
            self._states += added
        self._notify_of_change()
        for state in added:
            name = f"restarter of {state.server.name}"
            threading.Thread(target=self._watch_server, args=(state,), name=name, daemon=True).start()

    def list_records(self) -> list[ProcessRecord]:
        """Return the current records of all servers."""
        with self._lock:
            return [state.build_record() for state in self._states]

    def stop(self) -> None:
        """Stop restarting servers; each watching thread ends when its server exits."""
        with self._lock:
            self._stopping.set()

    def _watch_server(self, state: RestartState) -> None:
        server = state.server
        while not self._stopping.is_set():
            process = server.wait_for_start()
            status = process.wait()
            is_unexpected = server.should_run.is_set() and server.process is process
            if not is_unexpected or not self._restart_after_backoff(state, describe_exit(status)):
                state.reset_backoff()

    def _restart_after_backoff(self, state: RestartState, reason: str) -> bool:
        """Restart a server after its backoff; return whether it runs. A failed start counts as an unexpected exit."""
        while True:
            with self._lock:
                backoff = state.record_exit(reason, time.monotonic() - state.started_at)
            self._notify_of_change()
            self._stopping.wait(backoff)
            self._wait_until_restart_allowed(state.server)
            try:
                with self._lock:
                    if self._stopping.is_set() or not state.server.restart():
                        return False
                    state.record_restart()
            except OSError as error:
                reason = f"not started: {error}"
                state.started_at = time.monotonic()  # A failed start has no uptime.
                continue
            self._notify_of_change()
            return True

    def _wait_until_restart_allowed(self, server: Server) -> None:
        deadline = time.monotonic() + MAY_RESTART_TIMEOUT_SECONDS
        while not server.may_restart() and time.monotonic() < deadline:
            if self._stopping.wait(MAY_RESTART_POLL_SECONDS):
                return

    def _notify_of_change(self) -> None:
        with self._lock:
            self._on_change([state.build_record() for state in self._states])
