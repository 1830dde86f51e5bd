"""An HTTP server in a thread, for tests that stand where a function stands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

Answer = tuple[int, Mapping[str, str], bytes]
Handle = Callable[[str, Mapping[str, str], bytes], Answer]
"""Path, headers in lower case and body of a POST; status, headers and body of the answer."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


class Listener:
    """Answers every POST by `handle` while the block runs."""

    def __init__(self, handle: Handle) -> None:
        self._server = _Server(("127.0.0.1", 0), _handler(handle))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(handle: Handle) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more, content = handle(self.path, headers, body)
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: pytest shows what matters."""

    return Handler
