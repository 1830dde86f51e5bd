"""Tests for crash targets, which kill a server or one of its child processes, and restart it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.targets import CrashTarget
from localcluster.processes import Server, wait_until_ready

PARENT_SCRIPT = """
import subprocess
while True:
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    print(child.wait(), flush=True)
"""
StartServer = Callable[..., Server]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Yield a function that starts a server with a command; the server is killed at the end of the test."""
    with ExitStack() as exit_stack:

        def start(*command: str) -> Server:
            server = Server("server", command, tmp_path / "server.log")
            exit_stack.callback(server.kill)
            server.start()
            return server

        yield start


def test_server_is_killed_and_restarted(start_server: StartServer) -> None:
    server = start_server("sleep", "600")
    original_process = server.process

    CrashTarget(server).crash(0.0)

    assert original_process is not None
    assert original_process.returncode == -signal.SIGKILL
    assert server.is_alive
    assert server.process is not original_process


def test_killed_server_restarts_once_may_restart_returns_true(start_server: StartServer) -> None:
    """Check that a killed server restarts only once `may_restart` returns true.

    Knative's controllers, for example, wait until the dispatcher's port is free.
    """
    server, alive_states = start_server("sleep", "600"), list[bool]()

    def may_restart() -> bool:
        alive_states.append(server.is_alive)
        return len(alive_states) == 3

    server.may_restart = may_restart
    CrashTarget(server).crash(0.0)

    assert alive_states == [False, False, False]
    assert server.is_alive


def test_crash_is_complete_once_log_contains_ready_line(start_server: StartServer) -> None:
    """Check that a crash is complete once the log contains the ready line, so that the next crash follows later."""
    server = start_server("sh", "-c", "sleep 0.2; echo serving; exec sleep 600")
    wait_until_ready("the server", lambda: read_log_lines(server) == ["serving"], [server])

    CrashTarget(server, ready_log_line="serving").crash(0.0)

    assert read_log_lines(server) == ["serving", "serving"]


def test_crash_kills_child_without_parent_process(start_server: StartServer) -> None:
    server = start_server(sys.executable, "-c", PARENT_SCRIPT)
    original_process = server.process
    wait_until_ready("the child", lambda: len(read_log_lines(server)) == 1, [server])

    CrashTarget(server, kills_child=True).crash(0.0)

    wait_until_ready("the next child", lambda: len(read_log_lines(server)) == 3, [server])
    first_child_pid, exit_status, second_child_pid = read_log_lines(server)
    assert int(exit_status) == -signal.SIGKILL
    assert first_child_pid != second_child_pid
    assert server.process is original_process


def read_log_lines(server: Server) -> list[str]:
    """Return the lines in the server's log."""
    return server.log.read_text().splitlines()
