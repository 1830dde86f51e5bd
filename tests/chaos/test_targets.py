"""A killed process is restarted: a server when it may start, a child process by its parent."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.targets import Target
from localcluster.processes import Server, await_ready

PARENT = """
import subprocess
while True:
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    print(child.wait(), flush=True)
"""
Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a server with a command; the server stops with the test."""
    with ExitStack() as ending:

        def start(*words: str) -> Server:
            server = Server("server", words, tmp_path / "server.log")
            ending.callback(server.kill)
            server.start()
            return server

        yield start


def test_a_server_is_killed_and_started_again(start: Start) -> None:
    server = start("sleep", "600")
    before = server.process

    Target(server).crash(0.0)

    assert before is not None
    assert before.returncode == -signal.SIGKILL
    assert server.alive
    assert server.process is not before


def test_a_server_waits_for_its_turn(start: Start) -> None:
    """Check that a restart waits for `may_restart`, as Knative's controllers wait for the dispatcher's port."""
    server, alive = start("sleep", "600"), list[bool]()

    def turn() -> bool:
        alive.append(server.alive)
        return len(alive) == 3

    server.may_restart = turn
    Target(server).crash(0.0)

    assert alive == [False, False, False]
    assert server.alive


def test_the_end_of_a_crash_is_what_a_log_says(start: Start) -> None:
    """Check that a crash is complete when the log has the given line, so that dependent programs crash later."""
    server = start("sh", "-c", "sleep 0.2; echo serving; exec sleep 600")
    await_ready("the server", lambda: lines(server) == ["serving"], [server])

    Target(server, back="serving").crash(0.0)

    assert lines(server) == ["serving", "serving"]


def test_a_child_is_killed_and_its_parent_lives(start: Start) -> None:
    server = start(sys.executable, "-c", PARENT)
    before = server.process
    await_ready("the child", lambda: len(lines(server)) == 1, [server])

    Target(server, is_child=True).crash(0.0)

    await_ready("the next child", lambda: len(lines(server)) == 3, [server])
    first, status, second = lines(server)
    assert int(status) == -signal.SIGKILL
    assert first != second
    assert server.process is before


def lines(server: Server) -> list[str]:
    """Return the lines of the server's log."""
    return server.log.read_text().splitlines()
