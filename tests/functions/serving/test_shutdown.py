"""Tests of the shutdown of a function server, and of requests that never complete."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests

from localcluster.cluster import LocalCluster
from localcluster.function_server import Wiring, function_server
from localcluster.processes import Server, await_ready, free_port
from localcluster.servers import ROOT

pytestmark = pytest.mark.slow

SECONDS = 10
"""Maximum time for the shutdown; gunicorn would wait for 25 s."""
YOUNG_SECONDS = 4.5
"""Maximum time for a shutdown with a new connection; by default gunicorn waits 5 s for its first bytes."""


@contextmanager
def serving(
    cluster: LocalCluster, folder: Path, arguments: str = "", settings: Path | None = None
) -> Iterator[tuple[Server, int]]:
    """Yield a ready server of `cordon` and its port.

    `arguments` are further gunicorn options, and `settings` is a gunicorn settings file that replaces the shipped one.
    """
    port, wiring = free_port(), Wiring("http://localhost:9/", "", "http://localhost:9/")
    server = function_server("cordon", port, folder / "log", cluster.kubeconfig, wiring, "cordon")
    server.env["GUNICORN_CMD_ARGS"] = arguments
    if settings:
        server.command[server.command.index("functions/gunicorn.conf.py")] = str(settings)
    server.start()
    try:
        await_ready("cordon", lambda: _answers(port), [server])
        yield server, port
    finally:
        server.kill()


def test_a_connection_without_a_request_does_not_hold_it(quiet: LocalCluster, tmp_path: Path) -> None:
    """Check that an idle connection does not delay the shutdown.

    Knative's dispatcher keeps such connections: it opens one for a request that another connection then takes.
    """
    with (
        serving(quiet, tmp_path, "--threads 1") as (server, port),
        socket.create_connection(("127.0.0.1", port)),
    ):
        assert _answers(port), "its only thread waits for the connection above no longer"
        started = time.monotonic()
        server.stop(SECONDS)
        assert time.monotonic() - started < SECONDS


def test_nor_does_one_that_was_opened_a_moment_ago(quiet: LocalCluster, tmp_path: Path) -> None:
    """Check that a new connection without a request does not delay the shutdown.

    A thread waits for its first bytes, and the last attempts must still be published within the grace period.
    """
    with serving(quiet, tmp_path) as (server, port), socket.create_connection(("127.0.0.1", port)):
        started = time.monotonic()
        server.stop(SECONDS)
        assert time.monotonic() - started < YOUNG_SECONDS


@pytest.mark.parametrize("begun", [b"POST /cor", b"POST /cordon HTTP/1.1\r\nContent-Length: 10\r\n\r\n{"])
def test_requests_that_never_end_hold_no_thread_for_ever(quiet: LocalCluster, tmp_path: Path, begun: bytes) -> None:
    """X-6: Incomplete requests, one for each thread, time out, and the server then responds to others again."""
    settings = tmp_path / "gunicorn.conf.py"
    shipped = (ROOT / "functions/gunicorn.conf.py").read_text()
    settings.write_text(f"{shipped}\nWorker.request_seconds = 1.0\n")
    with serving(quiet, tmp_path, "--threads 2", settings) as (_, port), ExitStack() as stack:
        for _ in range(2):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            held.sendall(begun)
        started = time.monotonic()
        assert _answers(port)
        assert 0.5 < time.monotonic() - started < SECONDS


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/health/liveness", timeout=20).ok
    except requests.ConnectionError:
        return False
