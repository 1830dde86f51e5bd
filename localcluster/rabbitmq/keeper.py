"""Starts again what ended by itself, as a kubelet does.

The broker's parts rely on that: when RabbitMQ is away for some seconds, ingress and dispatchers end.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from localcluster.processes import Server

LOOK_SECONDS = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0
"""Seconds, the kubelet's own: at once after the first end, then after 10 s, doubling."""


@dataclass
class _Record:
    """What is known of one server's ends."""

    server: Server
    pause: float = 0.0
    due: float | None = None


class Keeper:
    """Looks after servers in a thread, from their `start` here until their `release`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Record] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self, *servers: Server) -> None:
        """Start servers and look after them."""
        with self._lock:
            for server in servers:
                server.start()
                self._kept[server.name] = _Record(server)
        if not self._thread.is_alive():
            self._thread.start()

    def kill(self, *servers: Server) -> None:
        """End servers as a crash would, and let them be."""
        with self._lock:
            for server in servers:
                self._kept.pop(server.name, None)
                server.kill()

    def stop(self) -> None:
        """Let all be."""
        self._ending.set()
        with self._lock:
            self._kept.clear()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            with self._lock:
                for record in self._kept.values():
                    if not record.server.alive:
                        _revive(record)


def _revive(record: _Record) -> None:
    """Start it once its pause is over."""
    now = time.monotonic()
    if record.due is None:
        record.due = now + record.pause
    if now >= record.due:
        record.server.start()
        record.due = None
        record.pause = min(2 * record.pause, LONGEST_PAUSE) or FIRST_PAUSE
