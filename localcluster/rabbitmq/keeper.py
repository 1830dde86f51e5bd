"""Starts again what ended by itself, as a kubelet does.

The broker's parts rely on that: when RabbitMQ is away for some seconds, ingress and dispatchers end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from localcluster.processes import Server

LOOK_SECONDS = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0
"""Seconds, the kubelet's own: at once after the first end, then after 10 s, doubling."""


class Kept(Server):
    """A server that is wanted from its `start` until its `kill`, whatever it does itself."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self._lock = threading.Lock()
        self._wanted = False
        self._pause = 0.0
        self._due: float | None = None

    def start(self) -> None:
        """Start it, and want it to run."""
        with self._lock:
            self._wanted, self._pause, self._due = True, 0.0, None
            super().start()

    def kill(self) -> None:
        """End it as a crash would, and want it no longer."""
        with self._lock:
            self._wanted = False
            super().kill()

    def look(self) -> None:
        """Start it again if it ended by itself and its pause is over."""
        with self._lock:
            if not self._wanted or self.alive:
                return
            now = time.monotonic()
            self._due = now + self._pause if self._due is None else self._due
            if now >= self._due:
                self._due = None
                self._pause = min(2 * self._pause, LONGEST_PAUSE) or FIRST_PAUSE
                super().start()


class Keeper:
    """Looks after servers in a thread, until it is told to stop."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, servers: Sequence[Server]) -> None:
        """Look after those of the servers that are to be kept."""
        self.stop()
        self._ending = threading.Event()
        kept = [server for server in servers if isinstance(server, Kept)]
        self._thread = threading.Thread(target=self._run, args=(kept, self._ending), name="keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let all be."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, servers: Sequence[Kept], ending: threading.Event) -> None:
        while not ending.wait(LOOK_SECONDS):
            for server in servers:
                server.look()
