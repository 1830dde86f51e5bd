"""The end of a process of functions."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from localcluster.cluster import LocalCluster
from localcluster.functionserver import Wiring, function_server
from localcluster.processes import Server, await_ready, free_port

SECONDS = 10
"""Within which it ends; gunicorn would wait for 25."""
YOUNG_SECONDS = 4.5
"""Less than gunicorn's thread would wait for the first bytes alone."""


@contextmanager
def serving(cluster: LocalCluster, folder: Path, arguments: str = "") -> Iterator[tuple[Server, int]]:
    """Give a process of `cordon` that is ready, and its port. In: what gunicorn is told beside its settings."""
    port, wiring = free_port(), Wiring("http://localhost:9/", "", "http://localhost:9/")
    server = function_server("cordon", port, folder / "log", cluster.kubeconfig, wiring, "cordon")
    server.env["GUNICORN_CMD_ARGS"] = arguments
    server.start()
    try:
        await_ready("cordon", lambda: _answers(port), [server])
        yield server, port
    finally:
        server.kill()


def test_a_connection_without_a_request_does_not_hold_it(quiet: LocalCluster, tmp_path: Path) -> None:
    """Knative's dispatcher keeps such, one that it opened for a request which another one took."""
    with (
        serving(quiet, tmp_path, "--threads 1") as (server, port),
        socket.create_connection(("127.0.0.1", port)),
    ):
        assert _answers(port), "its only thread waits for the connection above no longer"
        started = time.monotonic()
        server.stop(SECONDS)
        assert time.monotonic() - started < SECONDS


def test_nor_does_one_that_was_opened_a_moment_ago(quiet: LocalCluster, tmp_path: Path) -> None:
    """A thread waits for its first bytes, and what has to be published at the end needs the time."""
    with serving(quiet, tmp_path) as (server, port), socket.create_connection(("127.0.0.1", port)):
        started = time.monotonic()
        server.stop(SECONDS)
        assert time.monotonic() - started < YOUNG_SECONDS


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/health/liveness", timeout=20).ok
    except requests.ConnectionError:
        return False
