"""Stands on the way to a server, and can be cut: nothing comes through then, as when the server is away."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

PIECE = 64 * 1024


class Relay:
    """Forwards every connection to a port of this machine; asked at `address`, loopback if not said."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._to = port
        self._cut = self._silent = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server = socket.create_server((address, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and each that comes."""
        with self._lock:
            self._cut = True
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """End all connections; each that comes is taken, and nothing ever answered, as when a host has vanished."""
        self.cut()
        self._silent, self._cut = True, False

    def mend(self) -> None:
        """Let them through again."""
        with self._lock:
            self._cut = self._silent = False

    def close(self) -> None:
        """End it for good."""
        self.cut()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._server.accept()
                if self._cut:
                    near.close()
                    continue
                if self._silent:
                    self._open.add(near)
                    continue
                far = socket.create_connection(("127.0.0.1", self._to))
                with self._lock:
                    self._open |= {near, far}
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                target.sendall(piece)
        with self._lock:
            for connection in (source, target):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
                self._open.discard(connection)
