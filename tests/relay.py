"""TCP relay in front of a server; a test can interrupt it, so that the server seems unreachable."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

CHUNK_BYTES = 64 * 1024


class Relay:
    """A relay that listens on `address` (loopback by default) and forwards connections to a local port."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._target_port = port
        self._cut = self._is_unresponsive = False
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server = socket.create_server((address, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections, and close every new connection immediately."""
        with self._lock:
            self._cut = True
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def stop_responding(self) -> None:
        """Close all connections; accept new connections but never respond, as if the host were unreachable."""
        self.cut()
        self._is_unresponsive, self._cut = True, False

    def restore(self) -> None:
        """Forward new connections again."""
        with self._lock:
            self._cut = self._is_unresponsive = False

    def close(self) -> None:
        """Close all connections and the listening socket."""
        self.cut()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):  # `accept` fails after `close` has closed the listening socket.
            while True:
                client, _ = self._server.accept()
                if self._cut:
                    client.close()
                    continue
                if self._is_unresponsive:
                    self._connections.add(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._target_port))
                with self._lock:
                    self._connections |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, destination: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                destination.sendall(chunk)
        with self._lock:
            for connection in (source, destination):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
                self._connections.discard(connection)
