"""A killed process is restarted: a server when it may start, a child process by its parent."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.targets import CrashTarget
from localcluster.processes import Server, await_ready

PARENT_SCRIPT = """
import subprocess
while True:
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    print(child.wait(), flush=True)
"""
Start = Callable[..., Server]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a server with a command; the server stops with the test."""
    with ExitStack() as exit_stack:

        def start(*words: str) -> Server:
            server = Server("server", words, tmp_path / "server.log")
            exit_stack.callback(server.kill)
            server.start()
            return server

        yield start


def test_a_server_is_killed_and_started_again(start_server: Start) -> None:
    server = start_server("sleep", "600")
    before = server.process

    CrashTarget(server).crash(0.0)

    assert before is not None
    assert before.returncode == -signal.SIGKILL
    assert server.is_alive
    assert server.process is not before


def test_restart_waits_for_may_restart(start_server: Start) -> None:
    """Check that a restart waits for `may_restart`, as Knative's controllers wait for the dispatcher's port."""
    server, alive = start_server("sleep", "600"), list[bool]()

    def may_restart() -> bool:
        alive.append(server.is_alive)
        return len(alive) == 3

    server.may_restart = may_restart
    CrashTarget(server).crash(0.0)

    assert alive == [False, False, False]
    assert server.is_alive


def test_crash_is_complete_at_log_line(start_server: Start) -> None:
    """Check that a crash is complete when the log has the given line, so that dependent programs crash later."""
    server = start_server("sh", "-c", "sleep 0.2; echo serving; exec sleep 600")
    await_ready("the server", lambda: read_log_lines(server) == ["serving"], [server])

    CrashTarget(server, ready_log_line="serving").crash(0.0)

    assert read_log_lines(server) == ["serving", "serving"]


def test_child_is_killed_without_its_parent(start_server: Start) -> None:
    server = start_server(sys.executable, "-c", PARENT_SCRIPT)
    before = server.process
    await_ready("the child", lambda: len(read_log_lines(server)) == 1, [server])

    CrashTarget(server, kills_child=True).crash(0.0)

    await_ready("the next child", lambda: len(read_log_lines(server)) == 3, [server])
    first, status, second = read_log_lines(server)
    assert int(status) == -signal.SIGKILL
    assert first != second
    assert server.process is before


def read_log_lines(server: Server) -> list[str]:
    """Return the lines of the server's log."""
    return server.log.read_text().splitlines()
