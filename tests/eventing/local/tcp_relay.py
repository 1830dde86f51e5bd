"""TCP relay to a real server whose connections a test can cut, to check how a watcher handles the interruption."""

from __future__ import annotations

import contextlib
import socket
import threading


class TcpRelay:
    """A relay to 127.0.0.1:`port`; `cut()` closes all connections, and refuses new ones until `restore()`."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._sockets: set[socket.socket] = set()
        self._is_intact = True
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def cut(self) -> None:
        self._is_intact = False
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self._is_intact = True

    def close(self) -> None:
        self.cut()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client_side, _ = self._server.accept()
                if not self._is_intact:
                    client_side.close()
                    continue
                server_side = socket.create_connection(self._target)
                self._sockets |= {client_side, server_side}
                for pair in ((client_side, server_side), (server_side, client_side)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, destination: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                destination.sendall(data)
        for connection in (source, destination):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
            self._sockets.discard(connection)
