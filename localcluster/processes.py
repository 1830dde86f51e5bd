"""Runs servers as child processes. Each has its own session and log file, and is killed when its owner process dies."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from localcluster.errors import LocalClusterError

PDEATHSIG_PROGRAM = Path(__file__).with_name("pdeathsig.py")
POLL_SECONDS = 0.02
POLL_BACKOFF_FACTOR, MAX_POLL_SECONDS = 4, 0.5
"""The next probe follows after the last probe's duration times this factor, at most after this number of seconds."""
STOP_TIMEOUT_SECONDS = 5.0
# These ports are below the kernel's ephemeral range, so that an outgoing connection never uses a reserved port.
PORT_RANGE = range(20_000, 32_000)

# The kernel sends the parent-death signal when the forking thread ends, so one thread that never ends does all forks.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forker")
# Start the thread now: a signal handler that raises during the first use would leave a thread that blocks the exit.
_forker.submit(os.getpid).result()
# Abstract sockets that reserve the ports which this process has handed out; the kernel removes them when the process
# exits. Other processes cannot otherwise see that a port is taken before a server listens on it.
_port_reservations: list[socket.socket] = []
# File descriptors that every child inherits besides its log. A lock on such a file is held while any child is alive
# (see `up.state_directory`).
inherited_fds: list[int] = []


def reserve_port() -> int:
    """Return a free port on 127.0.0.1, and reserve it for this process; concurrent calls get different ports."""
    for port in random.sample(PORT_RANGE, k=200):
        reservation = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as probe:
            reservation.bind(f"\0nodemaintenance-port-{port}")
            probe.bind(("127.0.0.1", port))
            _port_reservations.append(reservation)
            return port
        reservation.close()
    raise LocalClusterError(
        f"no free port found from {PORT_RANGE.start} to {PORT_RANGE.stop} on 127.0.0.1: stop other local clusters"
    )


def is_listening(port: int) -> bool:
    """Return whether a server accepts connections on a port of 127.0.0.1."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


StartableType = TypeVar("StartableType", bound="Startable")


class Startable:
    """Base class of context managers that start processes on entry and stop them on exit.

    If the start fails, everything that was started is stopped. A subclass implements `_start_and_wait`, and `stop`,
    which must work at any stage of a start.
    """

    def start(self) -> None:
        """Start all processes; return when they are ready."""
        try:
            self._start_and_wait()
        except BaseException:
            self.stop()
            raise

    def _start_and_wait(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Stop all processes that were started."""
        raise NotImplementedError

    def __enter__(self: StartableType) -> StartableType:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


# Many small Go processes share a few cores. With Go's default, garbage collection took a sixth of their CPU time.
GO_ENV = {"GOGC": "400"}


class Server:
    """A server process that can be stopped, and restarted with the same command line. Thread-safe.

    Attributes:
        process: The most recently started process.
        should_run: Set by `start`, and cleared by `kill` and `stop`; stays set if the process exits unexpectedly.
        may_restart: Returns whether the process may be restarted now after an unexpected exit; returns False while
            another server that must start first is not ready.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.command = [str(argument) for argument in command]
        self.log = log
        self.env = {**os.environ, **GO_ENV, **(env or {})}
        self.cwd = cwd
        self.process: subprocess.Popen[bytes] | None = None
        self.should_run = threading.Event()
        self.may_restart: Callable[[], bool] = lambda: True
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """Return the process id, which is also the session id and the process group id."""
        if self.process is None:
            raise LocalClusterError(f'server "{self.name}" was not started')
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether the process is running."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process unless it is running; its output is appended to the log."""
        with self._lock:
            self._launch()
            self.should_run.set()

    def restart(self) -> bool:
        """Start the process again if it exited unexpectedly; return whether it runs. Raises `OSError` if it cannot."""
        with self._lock:
            if self.should_run.is_set():
                self._launch()
            return self.should_run.is_set()

    def wait_for_start(self) -> subprocess.Popen[bytes]:
        """Wait until the server is started, and return its process, which may have exited in the meantime."""
        self.should_run.wait()
        if self.process is None:
            raise LocalClusterError(f'server "{self.name}" was not started')
        return self.process

    def _launch(self) -> None:
        if not self.is_alive:
            self.send_signal(signal.SIGKILL)  # A worker may outlive its parent process, and still use the port.
            self.process = _forker.submit(self._fork).result()

    def _fork(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", str(PDEATHSIG_PROGRAM), str(os.getpid()), *self.command]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                cwd=self.cwd,
                start_new_session=True,
                pass_fds=inherited_fds,
            )

    def send_signal(self, signal_number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        # The process group may still have workers after the process itself has exited.
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal_number)

    def kill(self) -> None:
        """Kill the process to simulate a crash."""
        with self._lock:
            self.should_run.clear()
            self.send_signal(signal.SIGKILL)
            if self.process is not None:
                self.process.wait()

    def stop(self, timeout: float = STOP_TIMEOUT_SECONDS) -> None:
        """Send SIGTERM, wait at most `timeout` seconds for the process, then kill its process group."""
        with self._lock:
            self.should_run.clear()
            if self.process is None:
                return
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
            self.kill()

    def describe_log_tail(self, lines: int = 8) -> str:
        """Return the path of the log and its last lines, for an error message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n  ".join([f"last lines of {self.log}:", *text.splitlines()[-lines:]])


def wait_until_ready(
    name: str, is_ready: Callable[[], bool], servers: Sequence[Server], timeout: float = 180.0
) -> None:
    """Wait until `is_ready()` returns true. Raises `LocalClusterError` if a server exits, or after the timeout."""
    deadline = time.monotonic() + timeout
    while True:
        probed_at = time.monotonic()
        if is_ready():
            return
        for server in servers:
            if not server.is_alive:
                raise LocalClusterError(f"{server.name} exited while starting; {server.describe_log_tail()}")
        if time.monotonic() > deadline:
            tails = [server.describe_log_tail() for server in servers]
            raise LocalClusterError("; ".join([f"{name}: not ready after {timeout:.0f} s", *tails]))
        # A probe may cost a TLS handshake; on a few cores, constant polling would slow down the server's start.
        time.sleep(max(POLL_SECONDS, min(POLL_BACKOFF_FACTOR * (time.monotonic() - probed_at), MAX_POLL_SECONDS)))


def kill_all(servers: Sequence[Server]) -> None:
    """Kill the servers in reverse start order."""
    for server in reversed(servers):
        server.kill()


def start_and_wait_for_log(log_line: str, servers: Iterable[Server]) -> None:
    """Start the stopped servers; return when each has logged `log_line`. Raises `LocalClusterError` if one exits."""
    stopped = [(server, _get_file_size(server.log)) for server in servers if not server.is_alive]
    for server, _ in stopped:
        server.start()
    for server, log_size in stopped:
        wait_until_ready(server.name, _LogContains(log_line, server.log, log_size), [server])


class _LogContains:
    """Callable that returns whether a log contains a text after a given position."""

    def __init__(self, text: str, log: Path, position: int) -> None:
        self._text, self._log, self._position = text.encode(), log, position

    def __call__(self) -> bool:
        """Read the log and return whether it contains the text."""
        with self._log.open("rb") as log:
            log.seek(self._position)
            return self._text in log.read()


def _get_file_size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
