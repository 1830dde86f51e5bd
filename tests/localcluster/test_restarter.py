"""A process that exits is restarted, with a growing backoff; one that its owner stopped is not."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from localcluster import processes
from localcluster.processes import Server, await_ready, free_port, inherited, listens
from localcluster.up import restarter
from localcluster.up.restarter import (
    FIRST_PAUSE,
    LONG_LIFE,
    LONGEST_PAUSE,
    Keeper,
    Kept,
    Record,
    description,
    restart_pauses,
)

SECONDS = 20.0
LISTENING = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if os.fork():
    time.sleep(600)
print("serving", flush=True)
time.sleep(600)
"""
"""A server whose child process holds the port and does not notice that its parent exited."""


class Watch:
    """A restarter with its servers, which records the changes that it reports."""

    def __init__(self) -> None:
        self._changes: queue.Queue[list[Record]] = queue.Queue()
        self.keeper = Keeper(self._changes.put)
        self.servers: list[Server] = []

    def start(self, server: Server) -> Server:
        """Start a server and let the restarter watch it."""
        self.servers.append(server)
        server.start()
        self.keeper.keep([server])
        return server

    def until(self, holds: Callable[[Record], bool], server: Server) -> Record:
        """Return the server's first record that satisfies the predicate."""
        while True:
            for record in self._changes.get(timeout=SECONDS):
                if record.name == server.name and holds(record):
                    return record

    def close(self) -> None:
        """Stop the restarter and all servers."""
        self.keeper.stop()
        for server in self.servers:
            server.kill()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Yield a restarter without servers."""
    with closing(Watch()) as watch:
        yield watch


def sleeper(folder: Path, name: str = "sleeper", *words: str) -> Server:
    """Build a server that sleeps, or runs the given command."""
    return Server(name, words or ["sleep", "600"], folder / f"{name}.log")


def test_pauses_grow_from_none_to_the_longest() -> None:
    """Check that the backoff is zero for the first restart, then doubles up to the maximum."""
    first = list(islice(restart_pauses(), 50))

    assert first[:4] == [0.0, FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert first[-1] == max(first) == LONGEST_PAUSE


def test_an_end_is_described_in_words() -> None:
    """Check that an exit is described by the signal's name or by the exit status."""
    assert description(-signal.SIGKILL) == "killed by SIGKILL"
    assert description(3) == "exit status 3"


def test_a_killed_server_is_back_at_once(watch: Watch, tmp_path: Path) -> None:
    """Check that a killed server is restarted at once in another process, and that its record has the reason."""
    server = watch.start(sleeper(tmp_path))
    first = server.pid
    os.kill(first, signal.SIGKILL)

    down = watch.until(lambda record: record.due is not None, server)
    back = watch.until(lambda record: record.restarts == 1, server)

    assert (down.ended, down.due) == ("killed by SIGKILL", down.ended_at)
    assert back.due is None
    assert back.pid == server.pid == os.getpgid(server.pid) != first


def test_what_ends_again_and_again_waits_longer_each_time(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the backoff doubles for a program that exits with status 3 at every start."""
    monkeypatch.setattr(restarter, "FIRST_PAUSE", 0.1)
    server = watch.start(sleeper(tmp_path, "broken", "sh", "-c", "exit 3"))

    pauses = []
    for restarts in range(4):
        down = watch.until(lambda record, seen=restarts: record.due is not None and record.restarts == seen, server)  # type: ignore[misc]
        assert down.due is not None
        pauses.append(down.due - down.ended_at)

    assert down.ended == "exit status 3"
    assert pauses == pytest.approx([0.0, 0.1, 0.2, 0.4], abs=0.001)


def test_after_a_long_life_it_begins_anew(tmp_path: Path) -> None:
    """Check that the backoff restarts at zero after a long uptime, and grows after a short one."""
    kept = Kept(sleeper(tmp_path))

    pauses = [kept.end("exit status 1", lived) for lived in (1.0, LONG_LIFE - 1, 0.0, LONG_LIFE, 1.0)]

    assert pauses == [0.0, FIRST_PAUSE, 2 * FIRST_PAUSE, 0.0, FIRST_PAUSE]


def test_what_was_ended_on_purpose_stays_down_until_it_is_started(watch: Watch, tmp_path: Path) -> None:
    """Check that a server that its owner killed is not restarted until its owner starts it."""
    server, witness = watch.start(sleeper(tmp_path)), watch.start(sleeper(tmp_path, "witness"))
    server.kill()
    os.kill(witness.pid, signal.SIGKILL)  # killed later, so its exit is noticed later
    watch.until(lambda record: record.restarts == 1, witness)
    assert not server.alive
    assert [record.ended for record in watch.keeper.records()] == ["", "killed by SIGKILL"]

    server.start()
    os.kill(server.pid, signal.SIGKILL)
    watch.until(lambda record: record.restarts == 1, server)


def test_a_program_that_cannot_be_started_is_tried_again(watch: Watch, tmp_path: Path) -> None:
    """Check that a server whose log cannot be written is retried, and that its record names the reason."""
    room = tmp_path / "room"
    room.mkdir()
    server = watch.start(sleeper(room))
    (room / "sleeper.log").unlink()
    room.rmdir()
    os.kill(server.pid, signal.SIGKILL)
    down = watch.until(lambda record: record.ended.startswith("not started"), server)
    room.mkdir()

    assert "No such file or directory" in down.ended
    watch.until(lambda record: record.due is None and record.restarts == 1, server)


def test_a_worker_left_behind_does_not_hold_the_port(watch: Watch, tmp_path: Path) -> None:
    """Check that the killed process's children end before the restart, so that the port is free."""
    port = free_port()
    server = watch.start(sleeper(tmp_path, "listening", sys.executable, "-c", LISTENING, str(port)))
    await_ready("the worker", lambda: server.log.read_bytes().count(b"serving") == 1, [server])
    os.kill(server.pid, signal.SIGKILL)

    watch.until(lambda record: record.restarts == 1, server)
    await_ready("the worker", lambda: server.log.read_bytes().count(b"serving") == 2, [server])
    assert listens(port)


def test_a_restarted_server_holds_the_lock(watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a restarted server inherits the open lock file like the first one."""
    with (tmp_path / "lock").open("w") as lock:
        monkeypatch.setattr("localcluster.processes.inherited", [*inherited, lock.fileno()])
        server = watch.start(sleeper(tmp_path))
        os.kill(server.pid, signal.SIGKILL)
        back = watch.until(lambda record: record.restarts == 1, server)

        held = Path(f"/proc/{back.pid}/fd/{lock.fileno()}")
        assert held.resolve() == tmp_path / "lock"
        assert server.pid == back.pid


def test_a_restart_waits_for_its_turn(watch: Watch, tmp_path: Path) -> None:
    """Check that a server that depends on another one is not restarted before `may_restart` allows it."""
    turn = threading.Event()
    asked = threading.Event()

    def may_restart() -> bool:
        asked.set()
        return turn.is_set()

    server = watch.start(sleeper(tmp_path))
    server.may_restart = may_restart
    os.kill(server.pid, signal.SIGKILL)

    assert asked.wait(SECONDS)
    assert not server.alive
    turn.set()
    watch.until(lambda record: record.restarts == 1, server)


def test_no_port_is_given_to_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `free_port` never returns a port that another process has reserved."""
    monkeypatch.setattr(processes, "PORTS", range(31_000, 31_200))
    script = "from localcluster import processes as p\np.PORTS = range(31_000, 31_200)\n"
    script += "print(*(p.free_port() for _ in range(100)), flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours = {free_port() for _ in range(50)}
        other.communicate("\n")

    assert len(theirs) == 100
    assert not ours & theirs
