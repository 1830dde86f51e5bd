"""Tests for the shutdown of a function server, and for requests that clients never complete."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests

from localcluster.cluster import LocalCluster
from localcluster.function_server import FunctionConfig, build_function_server
from localcluster.processes import Server, reserve_port, wait_until_ready
from localcluster.servers import ROOT
from tests.proofs import proves

pytestmark = pytest.mark.slow

MAX_SHUTDOWN_SECONDS = 10
"""Maximum time for the shutdown; gunicorn would wait for 25 s."""
MAX_SHUTDOWN_SECONDS_WITH_NEW_CONNECTION = 4.5
"""Maximum time for a shutdown with a new connection, for whose first bytes gunicorn waits 5 s by default."""


@contextmanager
def run_function_server(
    cluster: LocalCluster, log_folder: Path, arguments: str = "", settings: Path | None = None
) -> Iterator[tuple[Server, int]]:
    """Yield a function server that serves `cordon`, and its port.

    `arguments` are additional gunicorn options, and `settings` is a gunicorn settings file that replaces the shipped
    file.
    """
    port, function_config = reserve_port(), FunctionConfig("http://localhost:9/", "", "http://localhost:9/")
    server = build_function_server("cordon", port, log_folder / "log", cluster.kubeconfig, function_config, "cordon")
    server.env["GUNICORN_CMD_ARGS"] = arguments
    if settings:
        server.command[server.command.index("functions/gunicorn.conf.py")] = str(settings)
    server.start()
    try:
        wait_until_ready("cordon", lambda: _is_server_alive(port), [server])
        yield server, port
    finally:
        server.kill()


def test_idle_connection_does_not_delay_shutdown(idle_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that an idle connection does not delay the shutdown.

    Knative's dispatcher may open a connection for a request that it then sends over another connection.
    """
    with (
        run_function_server(idle_cluster, tmp_path, "--threads 1") as (server, port),
        socket.create_connection(("127.0.0.1", port)),
    ):
        assert _is_server_alive(port), "the server's only thread still waits for the idle connection"
        start_time = time.monotonic()
        server.stop(MAX_SHUTDOWN_SECONDS)
        assert time.monotonic() - start_time < MAX_SHUTDOWN_SECONDS


def test_new_connection_does_not_delay_shutdown(idle_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that a new connection without a request does not delay the shutdown.

    A server thread waits for the connection's first bytes, but must end early enough to publish the last attempts.
    """
    with run_function_server(idle_cluster, tmp_path) as (server, port), socket.create_connection(("127.0.0.1", port)):
        start_time = time.monotonic()
        server.stop(MAX_SHUTDOWN_SECONDS)
        assert time.monotonic() - start_time < MAX_SHUTDOWN_SECONDS_WITH_NEW_CONNECTION


@pytest.mark.parametrize("request_start", [b"POST /cor", b"POST /cordon HTTP/1.1\r\nContent-Length: 10\r\n\r\n{"])
def test_incomplete_requests_time_out(idle_cluster: LocalCluster, tmp_path: Path, request_start: bytes) -> None:
    """X-6: Incomplete requests, one for each thread, time out, and the server then responds to other requests."""
    settings = tmp_path / "gunicorn.conf.py"
    config = (ROOT / "functions/gunicorn.conf.py").read_text()
    settings.write_text(f"{config}\nDeadlineWorker.request_timeout_seconds = 1.0\n")
    with run_function_server(idle_cluster, tmp_path, "--threads 2", settings) as (_, port), ExitStack() as stack:
        for _ in range(2):
            idle_connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            idle_connection.sendall(request_start)
        start_time = time.monotonic()
        assert _is_server_alive(port)
        assert 0.5 < time.monotonic() - start_time < MAX_SHUTDOWN_SECONDS


@proves("X-6")
def test_event_with_incomplete_body_is_not_processed(idle_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that the server answers 503 if a client disconnects before the body is complete, so that a proxy retries.

    gunicorn passes the incomplete body to the application.
    """
    head = "POST /cordon HTTP/1.1\r\nHost: cordon\r\nContent-Type: application/json\r\nContent-Length: 40\r\n"
    attributes = "ce-specversion: 1.0\r\nce-id: 1\r\nce-source: test\r\nce-type: maintenance.begun\r\n"
    with (
        run_function_server(idle_cluster, tmp_path) as (_, port),
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        connection.sendall(f'{head}{attributes}\r\n{{"node": "node-1"'.encode())
        connection.shutdown(socket.SHUT_WR)
        response = connection.makefile("rb").readline()

    assert b" 503 " in response


def _is_server_alive(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/health/liveness", timeout=20).ok
    except requests.ConnectionError:
        return False
