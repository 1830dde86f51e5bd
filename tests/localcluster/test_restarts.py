"""On a `make up` cluster, killed processes are restarted soon, and a drain in progress still succeeds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from http import HTTPStatus
from pathlib import Path

import pytest

from eventing.replay.function_client import post
from localcluster.processes import await_ready
from localcluster.programs import build
from localcluster.readiness import is_ready
from localcluster.up import state_directory
from localcluster.up.status import condition
from tests.functions.event_builders import tick
from tests.localcluster.commands import kubectl, record_of, run
from tests.machine_speed import is_below

pytestmark = pytest.mark.slow

BACK = 3.0
"""Maximum seconds from the first kill until the readiness endpoint responds again."""
PATIENCE = 30.0
"""Timeout in seconds; it exceeds the limit so that a slow restart is measured."""
MAINTENANCE = "nodemaintenance.nodemaintenance.medik8s.io"
ADDRESS = {"functions": r"FUNCTIONS=(\S+)", "delivery": r"BROKER=(\S+)", "console": r"console: (\S+)"}
"""Patterns for the addresses in the hints of `make up`."""


def start_maintenance(directory: Path) -> subprocess.Popen[str]:
    """Start a maintenance of node-1 with `kubectl maintenance start`, without waiting for it."""
    words = [sys.executable, "-m", "console.cli", "start", "node-1", "--reason", "restarts"]
    environment = {**os.environ, "KUBECONFIG": str(directory / state_directory.KUBECONFIG)}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end_well(directory: Path) -> None:
    """Wait until the maintenance succeeds, delete it, and check that the node is uncordoned.

    A tick replaces a lost event. The test sends it, because waiting up to 15 s for the next one would prove nothing
    more.
    """
    broker = address_of(directory, "delivery")
    kubectl(directory, "wait", MAINTENANCE, "node-1", "--for=create", "--timeout=30s")
    await_ready("the delivery", lambda: is_ready(broker), [], PATIENCE)

    def has_succeeded() -> bool:
        assert post(tick(), broker).status_code == HTTPStatus.ACCEPTED
        phase = kubectl(directory, "get", MAINTENANCE, "node-1", "-o", "jsonpath={.status.phase}")
        return phase == "Succeeded"

    await_ready("the end of the drain", has_succeeded, [], 60)
    kubectl(directory, "delete", MAINTENANCE, "node-1", "--timeout=60s")
    assert "unschedulable" not in kubectl(directory, "get", "node", "node-1", "-o", "json")


def address_of(directory: Path, name: str) -> str:
    """Return the address of a process."""
    found = re.search(ADDRESS[name], state_directory.hints(directory))
    assert found is not None
    return found[1]


@pytest.mark.parametrize("name", ADDRESS)
def test_a_killed_part_is_back_in_time(up: Path, name: str) -> None:
    """Check that a process that was killed is ready again within three seconds, as a new process."""
    address = address_of(up, name)
    killed = record_of(up, name).pid

    os.kill(killed, signal.SIGKILL)
    started = time.monotonic()
    await_ready(name, lambda: record_of(up, name).pid != killed and is_ready(address), [], PATIENCE)
    took = time.monotonic() - started
    print(f"{name}: back after {took:.2f} s")
    assert is_below(took, BACK)


@pytest.mark.parametrize("name", ADDRESS)
def test_a_drain_that_begins_while_a_part_is_down_succeeds(up: Path, name: str) -> None:
    """Check that a maintenance succeeds if it is created at the moment of the kill."""
    with start_maintenance(up) as start:
        os.kill(record_of(up, name).pid, signal.SIGKILL)
        assert start.wait(PATIENCE) == 0, start.stdout and start.stdout.read()

    end_well(up)


def test_the_cluster_itself_is_restarted_with_all_that_was_on_it(up: Path) -> None:
    """Check that the same cluster is back after etcd and all control-plane processes were killed at once.

    The fake kubelets are back, too: evicted pods end.
    """
    names = ("kwok", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
    uid = kubectl(up, "get", "node", "node-1", "-o", "jsonpath={.metadata.uid}")
    before = {name: record_of(up, name).pid for name in names}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)

    await_ready("each", lambda: all(record_of(up, name).pid != before[name] for name in names), [], PATIENCE)
    await_ready("all of them", lambda: condition(state_directory.records(up)) == "up", [], PATIENCE)
    await_ready("the API server", lambda: run_quietly(up, "get", "--raw", "/readyz"), [], PATIENCE)
    assert kubectl(up, "get", "node", "node-1", "-o", "jsonpath={.metadata.uid}") == uid
    kubectl(up, "delete", "pods", "--selector=app=web", "--timeout=60s")
    kubectl(up, "rollout", "status", "deployment/web", "--timeout=60s")
    with start_maintenance(up) as start:
        assert start.wait(PATIENCE) == 0, start.stdout and start.stdout.read()
    end_well(up)


def run_quietly(directory: Path, *words: str) -> bool:
    """Return whether kubectl succeeds."""
    line = [str(build.servers() / "kubectl"), f"--kubeconfig={directory / state_directory.KUBECONFIG}", *words]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


def test_status_has_each_process_and_why_it_ended(up: Path) -> None:
    """Check that `status` lists state, process id, restarts and the last exit of each process."""
    before = record_of(up, "console")
    os.kill(before.pid, signal.SIGKILL)
    await_ready("the restart", lambda: record_of(up, "console").restarts > before.restarts, [], PATIENCE)

    status = run(up, "status")

    lines = {line.split()[0]: line for line in status.stdout.splitlines()}
    now = record_of(up, "console")
    assert status.returncode == 0
    assert {"etcd", "kube-apiserver", "functions", "delivery", "console"} <= lines.keys()
    assert re.search(
        rf"running +{now.pid} +{now.restarts} +killed by SIGKILL, \d+ s ago; .*console.log$", lines["console"]
    )
    assert lines["up,"].startswith(f"up, supervisor {state_directory.supervisor_pid(up)}, ")
