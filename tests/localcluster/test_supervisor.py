"""`make up` and `make down`: what is started stays until it is ended, and then all of it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcluster import build, folder

ROOT = Path(__file__).parents[2]
SERVERS = 8  # etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok; functions, delivery, console


def command(directory: Path, verb: str, *options: str) -> list[str]:
    """Give the command line that the Makefile uses, for a folder of our own."""
    return [sys.executable, "-m", "localcluster", verb, "--directory", str(directory), *options]


def run(directory: Path, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run such a command to its end."""
    words = command(directory, verb, *options)
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Give a folder for a cluster, and end what a failed test left in it."""
    build.servers()
    yield tmp_path / "up"
    run(tmp_path / "up", "down")


def living(groups: list[int]) -> list[int]:
    """Give which of these process groups still have a process."""
    alive = []
    for group in groups:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            continue
        alive.append(group)
    return alive


def soon(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Wait until it holds; a process that ended is there until it was reaped, which others do when they come to it."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def test_up_returns_when_all_is_ready_and_down_ends_it(directory: Path) -> None:
    """After up the printed kubeconfig works and all is running; a second up says so; after down nothing is left."""
    up = run(directory, "up", "--nodes", "2")
    groups = folder.groups(directory)
    kubectl = [
        str(build.servers() / "kubectl"),
        "--kubeconfig",
        str(directory / "kubeconfig"),
        "get",
        "nodes",
        "-o",
        "name",
    ]
    nodes = subprocess.run(kubectl, capture_output=True, text=True, check=True).stdout.split()
    again = run(directory, "up")
    other = run(directory, "up", "--delivery", "rabbitmq")
    down = run(directory, "down")

    assert up.returncode == 0, up.stdout + up.stderr
    assert f"export KUBECONFIG={directory}/kubeconfig\n" in up.stdout
    assert len(groups) == SERVERS
    assert nodes == ["node/node-1", "node/node-2"]
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, "already up; `make down` ends it")
    assert other.returncode != 0
    assert "another DELIVERY is up; `make down` ends it" in other.stdout + other.stderr
    assert (down.returncode, down.stdout) == (0, "down\n")
    assert not folder.running(directory)
    assert soon(lambda: living(groups) == [])


def test_a_killed_supervisor_takes_all_with_it(directory: Path) -> None:
    """When the supervisor is killed with SIGKILL its servers end, down agrees, and a new up is not misled."""
    assert run(directory, "up", "--nodes", "1").returncode == 0

    groups = folder.groups(directory)
    os.kill(folder.supervisor_pid(directory), signal.SIGKILL)

    down = run(directory, "down")
    assert down.returncode == 0
    assert not folder.running(directory)
    assert soon(lambda: living(groups) == [])
    assert run(directory, "up", "--nodes", "1").returncode == 0


def test_ctrl_c_while_starting_ends_what_was_started(directory: Path) -> None:
    """Ctrl-C in the middle of up stops the servers that had been started by then."""
    with subprocess.Popen(command(directory, "up"), cwd=ROOT, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        while "starting etcd" not in up.stdout.readline():
            pass
        up.send_signal(signal.SIGINT)
        up.stdout.read()

    assert up.returncode != 0
    assert soon(lambda: not folder.running(directory))


def test_an_unknown_delivery_is_refused(directory: Path) -> None:
    """A delivery that we do not have is one line that names those we have, and nothing is started."""
    refused = run(directory, "up", "--delivery", "pigeon")

    assert refused.returncode == 1
    assert refused.stderr == "error: DELIVERY=pigeon is not known; allowed: local, knative, rabbitmq\n"
    assert not directory.exists()


def test_down_and_status_without_a_cluster_are_no_errors(directory: Path) -> None:
    """Where nothing is up, down and status say so and succeed, also with a stale pid file."""
    directory.mkdir()
    (directory / folder.PID_FILE).write_text("1")

    assert (run(directory, "down").stdout, run(directory, "down").returncode) == ("not up: nothing to do\n", 0)
    assert (run(directory, "status").stdout, run(directory, "status").returncode) == (
        "not up; `make up` starts it\n",
        0,
    )
