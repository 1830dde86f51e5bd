"""An HTTP server that records requests, and acts as a subscriber, a broker or a span collector."""

from __future__ import annotations

import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TIMEOUT_SECONDS = 120.0  # Maximum time to wait for requests
SHUTDOWN_POLL_SECONDS = 0.02  # `shutdown` waits up to one interval; the default is 0.5 s.


@dataclass(frozen=True)
class ReceivedRequest:
    """A received request; header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    received_at: float
    client_port: int = 0

    @property
    def id(self) -> str:
        """Return the id of the event in the request, or "" if there is none."""
        return self.headers.get("ce-id", "")


@dataclass(frozen=True)
class Response:
    """A response to a received request."""

    status: int = 202
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Receiver:
    """An HTTP server that accepts a POST to any path, and records the requests in order of arrival.

    `answers[path]` builds the response for a path, and `default_answer` builds it for all other paths. With `tls`, the
    server uses HTTPS.
    """

    def __init__(
        self,
        port: int = 0,
        default_answer: Callable[[ReceivedRequest], Response] = lambda _: Response(),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[ReceivedRequest] = []
        self.answers: dict[str, Callable[[ReceivedRequest], Response]] = defaultdict(lambda: default_answer)
        self.in_flight: dict[str, int] = defaultdict(int)
        self.max_in_flight: dict[str, int] = defaultdict(int)
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                response = receiver.handle(
                    ReceivedRequest(self.path, headers, body, time.monotonic(), self.client_address[1])
                )
                self.send_response(response.status)
                for name, value in {**response.headers, "content-length": str(len(response.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(response.body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 1024

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignore errors: a killed client resets its connections."""

        self._scheme = "https" if tls else "http"
        self._server = Server(("127.0.0.1", port), Handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(SHUTDOWN_POLL_SECONDS,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Return the port on which the server listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Return the base URL of the server."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def handle(self, request: ReceivedRequest) -> Response:
        """Record a request and return its response."""
        with self._changed:
            self.in_flight[request.path] += 1
            self.max_in_flight[request.path] = max(self.max_in_flight[request.path], self.in_flight[request.path])
            self.requests.append(request)
            self._changed.notify_all()
        try:
            return self.answers[request.path](request)
        finally:
            with self._changed:
                self.in_flight[request.path] -= 1
                self._changed.notify_all()

    def list_requests(self, path: str) -> list[ReceivedRequest]:
        """Return the requests for this path, in order of arrival."""
        return [request for request in list(self.requests) if request.path == path]

    def wait_until(self, predicate: Callable[[], bool]) -> None:
        """Wait until `predicate`, which is called after each request, returns true. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(predicate, TIMEOUT_SECONDS):
                raise TimeoutError(f"received only {[(request.path, request.id) for request in self.requests]}")

    def wait_for_requests(self, path: str, count: int = 1) -> list[ReceivedRequest]:
        """Wait for `count` requests with this path; return all requests with this path."""
        self.wait_until(lambda: len(self.list_requests(path)) >= count)
        return self.list_requests(path)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
