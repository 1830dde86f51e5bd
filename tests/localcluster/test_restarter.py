"""Tests that exited processes are restarted with exponential backoff, unless their owner has stopped them."""

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
from localcluster.processes import Server, inherited_fds, is_listening, reserve_port, wait_until_ready
from localcluster.up import restarter
from localcluster.up.restarter import (
    BACKOFF_RESET_SECONDS,
    FIRST_BACKOFF_SECONDS,
    MAX_BACKOFF_SECONDS,
    ProcessRecord,
    Restarter,
    RestartState,
    describe_exit,
    iter_restart_backoffs,
)

TIMEOUT_SECONDS = 20.0
LISTENING_SCRIPT = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if os.fork():
    time.sleep(600)
print("serving", flush=True)
time.sleep(600)
"""
"""Python script of a server whose child process keeps the port open after the parent process has exited."""


class RestarterFixture:
    """A restarter with its servers, and the process records that the restarter has reported."""

    def __init__(self) -> None:
        self._changes: queue.Queue[list[ProcessRecord]] = queue.Queue()
        self.restarter = Restarter(self._changes.put)
        self.servers: list[Server] = []

    def start_server(self, server: Server) -> Server:
        """Start a server, and add it to the restarter."""
        self.servers.append(server)
        server.start()
        self.restarter.add_servers([server])
        return server

    def wait_for_record(self, predicate: Callable[[ProcessRecord], bool], server: Server) -> ProcessRecord:
        """Wait until the restarter reports a record of the server that satisfies `predicate`, and return it."""
        while True:
            for record in self._changes.get(timeout=TIMEOUT_SECONDS):
                if record.name == server.name and predicate(record):
                    return record

    def close(self) -> None:
        """Stop the restarter and all servers."""
        self.restarter.stop()
        for server in self.servers:
            server.kill()


@pytest.fixture
def restarter_fixture() -> Iterator[RestarterFixture]:
    """Yield a restarter without servers."""
    with closing(RestarterFixture()) as fixture:
        yield fixture


def build_sleeper(directory: Path, name: str = "sleeper", *command: str) -> Server:
    """Build a server that runs the given command, or `sleep` by default."""
    return Server(name, command or ["sleep", "600"], directory / f"{name}.log")


def test_backoff_grows_from_zero_to_maximum() -> None:
    """Check that the backoff is zero before the first restart, and then doubles up to its maximum."""
    backoffs = list(islice(iter_restart_backoffs(), 50))

    assert backoffs[:4] == [0.0, FIRST_BACKOFF_SECONDS, 2 * FIRST_BACKOFF_SECONDS, 4 * FIRST_BACKOFF_SECONDS]
    assert backoffs[-1] == max(backoffs) == MAX_BACKOFF_SECONDS


def test_description_of_exit_names_signal_or_status() -> None:
    """Check that the description of an exit contains the signal's name or the exit status."""
    assert describe_exit(-signal.SIGKILL) == "killed by SIGKILL"
    assert describe_exit(3) == "exit status 3"


def test_killed_server_is_restarted_immediately(restarter_fixture: RestarterFixture, tmp_path: Path) -> None:
    """Check that a killed server is restarted immediately as a new process, and that its record has the reason."""
    server = restarter_fixture.start_server(build_sleeper(tmp_path))
    first_pid = server.pid
    os.kill(first_pid, signal.SIGKILL)

    exited = restarter_fixture.wait_for_record(lambda record: record.restart_at is not None, server)
    restarted = restarter_fixture.wait_for_record(lambda record: record.restarts == 1, server)

    assert (exited.exit_reason, exited.restart_at) == ("killed by SIGKILL", exited.exited_at)
    assert restarted.restart_at is None
    assert restarted.pid == server.pid == os.getpgid(server.pid) != first_pid


def test_backoff_doubles_with_each_exit(
    restarter_fixture: RestarterFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the backoff doubles for a program that exits with status 3 after every start."""
    monkeypatch.setattr(restarter, "FIRST_BACKOFF_SECONDS", 0.1)
    server = restarter_fixture.start_server(build_sleeper(tmp_path, "broken", "sh", "-c", "exit 3"))

    backoffs = []
    for restarts in range(4):
        exited = restarter_fixture.wait_for_record(
            lambda record, count=restarts: record.restart_at is not None and record.restarts == count,  # type: ignore[misc]
            server,
        )
        assert exited.restart_at is not None
        backoffs.append(exited.restart_at - exited.exited_at)

    assert exited.exit_reason == "exit status 3"
    assert backoffs == pytest.approx([0.0, 0.1, 0.2, 0.4], abs=0.001)


def test_long_uptime_resets_backoff(tmp_path: Path) -> None:
    """Check that the backoff is zero again after a long uptime, and grows after a short one."""
    restart_state = RestartState(build_sleeper(tmp_path))

    backoffs = [
        restart_state.record_exit("exit status 1", uptime)
        for uptime in (1.0, BACKOFF_RESET_SECONDS - 1, 0.0, BACKOFF_RESET_SECONDS, 1.0)
    ]

    assert backoffs == [0.0, FIRST_BACKOFF_SECONDS, 2 * FIRST_BACKOFF_SECONDS, 0.0, FIRST_BACKOFF_SECONDS]


def test_stopped_server_is_not_restarted(restarter_fixture: RestarterFixture, tmp_path: Path) -> None:
    """Check that a server that its owner has stopped is not restarted until its owner starts it again."""
    server, later_server = (
        restarter_fixture.start_server(build_sleeper(tmp_path)),
        restarter_fixture.start_server(build_sleeper(tmp_path, "later")),
    )
    server.kill()
    os.kill(later_server.pid, signal.SIGKILL)  # The restarter handles this exit after the exit of `server`.
    restarter_fixture.wait_for_record(lambda record: record.restarts == 1, later_server)
    assert not server.is_alive
    assert [record.exit_reason for record in restarter_fixture.restarter.list_records()] == ["", "killed by SIGKILL"]

    server.start()
    os.kill(server.pid, signal.SIGKILL)
    restarter_fixture.wait_for_record(lambda record: record.restarts == 1, server)


def test_failed_start_of_server_is_retried(restarter_fixture: RestarterFixture, tmp_path: Path) -> None:
    """Check that a start is retried if the server's log file cannot be written, and that the record has the reason."""
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    server = restarter_fixture.start_server(build_sleeper(log_dir))
    (log_dir / "sleeper.log").unlink()
    log_dir.rmdir()
    os.kill(server.pid, signal.SIGKILL)
    failed = restarter_fixture.wait_for_record(lambda record: record.exit_reason.startswith("not started"), server)
    log_dir.mkdir()

    assert "No such file or directory" in failed.exit_reason
    restarter_fixture.wait_for_record(lambda record: record.restart_at is None and record.restarts == 1, server)


def test_child_processes_are_stopped_before_restart(restarter_fixture: RestarterFixture, tmp_path: Path) -> None:
    """Check that a killed process's children are stopped before its restart, so that the port is free."""
    port = reserve_port()
    server = restarter_fixture.start_server(
        build_sleeper(tmp_path, "listening", sys.executable, "-c", LISTENING_SCRIPT, str(port))
    )
    wait_until_ready("the worker", lambda: server.log.read_bytes().count(b"serving") == 1, [server])
    os.kill(server.pid, signal.SIGKILL)

    restarter_fixture.wait_for_record(lambda record: record.restarts == 1, server)
    wait_until_ready("the worker", lambda: server.log.read_bytes().count(b"serving") == 2, [server])
    assert is_listening(port)


def test_restarted_server_inherits_lock_file(
    restarter_fixture: RestarterFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a restarted server inherits the open lock file, like the server's first process."""
    with (tmp_path / "lock").open("w") as lock:
        monkeypatch.setattr("localcluster.processes.inherited_fds", [*inherited_fds, lock.fileno()])
        server = restarter_fixture.start_server(build_sleeper(tmp_path))
        os.kill(server.pid, signal.SIGKILL)
        restarted = restarter_fixture.wait_for_record(lambda record: record.restarts == 1, server)

        inherited_file = Path(f"/proc/{restarted.pid}/fd/{lock.fileno()}")
        assert inherited_file.resolve() == tmp_path / "lock"
        assert server.pid == restarted.pid


def test_server_is_not_restarted_before_may_restart_allows_it(
    restarter_fixture: RestarterFixture, tmp_path: Path
) -> None:
    """Check that a server, which may depend on another one, is restarted only once `may_restart` returns true."""
    allowed = threading.Event()
    called = threading.Event()

    def may_restart() -> bool:
        called.set()
        return allowed.is_set()

    server = restarter_fixture.start_server(build_sleeper(tmp_path))
    server.may_restart = may_restart
    os.kill(server.pid, signal.SIGKILL)

    assert called.wait(TIMEOUT_SECONDS)
    assert not server.is_alive
    allowed.set()
    restarter_fixture.wait_for_record(lambda record: record.restarts == 1, server)


def test_reserved_ports_are_unique_across_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `reserve_port` never returns a port that another process has reserved."""
    monkeypatch.setattr(processes, "PORT_RANGE", range(31_000, 31_200))
    script = "from localcluster import processes as p\np.PORT_RANGE = range(31_000, 31_200)\n"
    script += "print(*(p.reserve_port() for _ in range(100)), flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other_process:
        assert other_process.stdout
        other_ports = {int(port) for port in other_process.stdout.readline().split()}
        own_ports = {reserve_port() for _ in range(50)}
        other_process.communicate("\n")

    assert len(other_ports) == 100
    assert not own_ports & other_ports
