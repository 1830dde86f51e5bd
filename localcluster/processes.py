"""Servers as child processes: each in its own session, with a log file, and killed when its owner dies."""

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

LEASH = Path(__file__).with_name("leash.py")
POLL_SECONDS = 0.02
REST, LONGEST_REST = 4, 0.5
"""The poll interval as a multiple of the last probe's duration, and its maximum in seconds."""
STOP_SECONDS = 5.0
# Below the kernel's ephemeral port range, so that no outgoing connection takes a port before its server does.
PORTS = range(20_000, 32_000)

# The kernel sends the parent-death signal when the forking thread ends, not the process, so one lasting thread forks.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forker")
# Start the thread now: a signal handler that raises during the first use would leave a thread that blocks the exit.
_forker.submit(os.getpid).result()
# The ports that this process has handed out, each reserved by an abstract socket, which the kernel frees with the
# process. Until a server listens, nothing else shows other processes that its port is taken.
_claims: list[socket.socket] = []
# File descriptors that every child inherits besides its log. While a lock on one is held, a child is alive (see
# `up.folder`).
inherited: list[int] = []


def free_port() -> int:
    """Return a free port on 127.0.0.1 that no running process has reserved with this function."""
    for port in random.sample(PORTS, k=200):
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as probe:
            claim.bind(f"\0nodemaintenance-port-{port}")
            probe.bind(("127.0.0.1", port))
            _claims.append(claim)
            return port
        claim.close()
    raise LocalClusterError(f"no free port between {PORTS.start} and {PORTS.stop} on 127.0.0.1")


def listens(port: int) -> bool:
    """Return whether a server accepts connections on a port of 127.0.0.1."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


S = TypeVar("S", bound="Startable")


class Startable:
    """A context manager that starts something on entry and stops it on exit; a failed start stops what was started.

    A subclass implements `_bring_up`, and `stop`, which must work at any stage of a start.
    """

    def start(self) -> None:
        """Start everything; return when it is ready."""
        try:
            self._bring_up()
        except BaseException:
            self.stop()
            raise

    def _bring_up(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Stop everything that was started."""
        raise NotImplementedError

    def __enter__(self: S) -> S:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


# The Go programs here are many and small and share few cores. With the default, they spent a sixth of their time in
# garbage collection.
THRIFT = {"GOGC": "400"}


class Server:
    """A server process that can be started, stopped and restarted with the same command line. Thread-safe.

    Attributes:
        process: The latest process.
        wanted: Set from `start` until `kill` or `stop`, even if the process exits in between.
        may_restart: Returns whether a restart after an unexpected exit may happen now; false if a server that must
            start first is not ready.
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
        self.command = [str(word) for word in command]
        self.log = log
        self.env = {**os.environ, **THRIFT, **(env or {})}
        self.cwd = cwd
        self.process: subprocess.Popen[bytes] | None = None
        self.wanted = threading.Event()
        self.may_restart: Callable[[], bool] = lambda: True
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of its session and process group."""
        if self.process is None:
            raise LocalClusterError(f"{self.name} was not started")
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process is running."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process unless it is running; its output is appended to the log."""
        with self._lock:
            self._launch()
            self.wanted.set()

    def restart(self) -> bool:
        """Start the process if it exited unexpectedly; return whether it now runs. Raises `OSError`."""
        with self._lock:
            if self.wanted.is_set():
                self._launch()
            return self.wanted.is_set()

    def await_start(self) -> subprocess.Popen[bytes]:
        """Wait until the process is wanted; return it, even if it has exited already."""
        self.wanted.wait()
        if self.process is None:
            raise LocalClusterError(f"{self.name} was not started")
        return self.process

    def _launch(self) -> None:
        if not self.alive:
            self.signal(signal.SIGKILL)  # a worker may outlive its parent and hold the port
            self.process = _forker.submit(self._fork).result()

    def _fork(self) -> subprocess.Popen[bytes]:
        leashed = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *self.command]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                leashed,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                cwd=self.cwd,
                start_new_session=True,
                pass_fds=inherited,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        # The process group may still have workers after the process itself has exited.
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill the process to simulate a crash."""
        with self._lock:
            self.wanted.clear()
            self.signal(signal.SIGKILL)
            if self.process is not None:
                self.process.wait()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Send SIGTERM to the process, and kill what remains after `seconds`."""
        with self._lock:
            self.wanted.clear()
            if self.process is None:
                return
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            self.kill()

    def tail(self, lines: int = 8) -> str:
        """Return the path of the log and its last lines, for an error message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n  ".join([f"{self.log} ends:", *text.splitlines()[-lines:]])


def await_ready(what: str, ready: Callable[[], bool], servers: Sequence[Server], seconds: float = 180.0) -> None:
    """Return as soon as `ready()` holds. Raises `LocalClusterError` at once if a server exits, and at the timeout."""
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if ready():
            return
        for server in servers:
            if not server.alive:
                raise LocalClusterError(f"{server.name} ended while starting; {server.tail()}")
        if time.monotonic() > deadline:
            tails = [server.tail() for server in servers]
            raise LocalClusterError("; ".join([f"{what} was not ready after {seconds:.0f} s", *tails]))
        # A probe may cost both sides a TLS handshake; on few cores, constant polling would slow down the server's
        # start.
        time.sleep(max(POLL_SECONDS, min(REST * (time.monotonic() - asked), LONGEST_REST)))


def kill_all(servers: Sequence[Server]) -> None:
    """Kill the servers one after another, the last started first."""
    for server in reversed(servers):
        server.kill()


def start_saying(text: str, servers: Iterable[Server]) -> None:
    """Start the stopped servers; return when each has logged `text`. Raises `LocalClusterError` if one exits."""
    down = [(server, _size(server.log)) for server in servers if not server.alive]
    for server, _ in down:
        server.start()
    for server, size in down:
        await_ready(server.name, _Said(text, server.log, size), [server])


class _Said:
    """Checks whether a log contains a text after a given position."""

    def __init__(self, text: str, log: Path, position: int) -> None:
        self._text, self._log, self._position = text.encode(), log, position

    def __call__(self) -> bool:
        """Read the log and return whether it contains the text."""
        with self._log.open("rb") as log:
            log.seek(self._position)
            return self._text in log.read()


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
