"""Servers as child processes: each in a session of its own, with a log file, and never outliving its owner."""

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

from localcluster.trouble import LocalClusterError

LEASH = Path(__file__).with_name("leash.py")
POLL_SECONDS = 0.02
REST, LONGEST_REST = 4, 0.5
"""Between two questions: so many times as long as the last one took, and at most so many seconds."""
STOP_SECONDS = 5.0
# Below the range that the kernel gives to outgoing connections: none of those takes a port before its server does.
PORTS = range(20_000, 32_000)

# The kernel ties a leash to the thread that forked, not to the process; so every fork is left to one thread that stays.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forker")
# It begins here: a signal whose handler raises, amid the first use, would leave a thread that nobody ends at exit.
_forker.submit(os.getpid).result()
# The ports given by this process: each a name without a file, which the kernel forgets with the process. Until a server
# listens nothing else shows the other processes that its port is taken.
_claims: list[socket.socket] = []
# What every child holds open besides its log: while one of these files is locked, a child is alive (see supervisor).
inherited: list[int] = []


def free_port() -> int:
    """Give a port on 127.0.0.1 that nobody listens on, and that no process was given that is still there."""
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
    """Tell whether somebody takes connections on a port of 127.0.0.1."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


S = TypeVar("S", bound="Startable")


class Startable:
    """What is started on entering and stopped on leaving; a start that fails stops what it has started.

    A subclass gives `_bring_up` and `stop`, which must bear being called at any stage of a start.
    """

    def start(self) -> None:
        """Start all and return when it is ready."""
        try:
            self._bring_up()
        except BaseException:
            self.stop()
            raise

    def _bring_up(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """End all that was started."""
        raise NotImplementedError

    def __enter__(self: S) -> S:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


# The Go programs here are many, small, and share few cores: about a sixth of their time went into collecting garbage.
THRIFT = {"GOGC": "400"}


class Server:
    """One server: started, watched, stopped, and started again with the same command line. Threads may share it.

    Attributes:
        process: the latest process.
        wanted: set from `start` until `kill` or `stop`, whatever the process does itself meanwhile.
        may_restart: whether its turn has come, when it ended by itself and another has to be there before it.
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
        """Give the process id; it is also the id of its session and process group."""
        if self.process is None:
            raise LocalClusterError(f"{self.name} was not started")
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Tell whether it runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it unless it runs; its output is added to its log."""
        with self._lock:
            self._launch()
            self.wanted.set()

    def restart(self) -> bool:
        """Start it if it ended by itself; tells whether it is wanted, and so runs now. Raises OSError."""
        with self._lock:
            if self.wanted.is_set():
                self._launch()
            return self.wanted.is_set()

    def await_start(self) -> subprocess.Popen[bytes]:
        """Wait until it is wanted; gives its process, which may have ended by then."""
        self.wanted.wait()
        if self.process is None:
            raise LocalClusterError(f"{self.name} was not started")
        return self.process

    def _launch(self) -> None:
        if not self.alive:
            self.signal(signal.SIGKILL)  # a worker may outlive the process that started it, and hold its port
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
        """Send a signal to it and to what it started."""
        # Its group can still hold workers when the process itself has ended.
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End it as a crash would: no notice, no cleaning up."""
        with self._lock:
            self.wanted.clear()
            self.signal(signal.SIGKILL)
            if self.process is not None:
                self.process.wait()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask it to end, and kill what is left of it after that time."""
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
        """Say where its log is, and how that ends."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n  ".join([f"{self.log} ends:", *text.splitlines()[-lines:]])


def await_ready(what: str, ready: Callable[[], bool], servers: Sequence[Server], seconds: float = 180.0) -> None:
    """Return as soon as `ready()` holds; fail at once if one of the servers ends, or when the time is over."""
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
        # A question may cost both sides a TLS handshake: on few cores, asking all the time holds up what it waits for.
        time.sleep(max(POLL_SECONDS, min(REST * (time.monotonic() - asked), LONGEST_REST)))


def kill_all(servers: Sequence[Server]) -> None:
    """End them one after another, the last started first."""
    for server in reversed(servers):
        server.kill()


def start_saying(text: str, servers: Iterable[Server]) -> None:
    """Start those that are down; return when each of them has said so in its log, and fail at once if one ends."""
    down = [(server, _size(server.log)) for server in servers if not server.alive]
    for server, _ in down:
        server.start()
    for server, size in down:
        await_ready(server.name, _Said(text, server.log, size), [server])


class _Said:
    """Tells whether a log has said something since it was so long."""

    def __init__(self, text: str, log: Path, position: int) -> None:
        self._text, self._log, self._position = text.encode(), log, position

    def __call__(self) -> bool:
        """Look into the log."""
        with self._log.open("rb") as log:
            log.seek(self._position)
            return self._text in log.read()


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
