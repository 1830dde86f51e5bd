"""Tests that killed processes of a `make up` cluster are restarted soon, and that a running drain succeeds."""

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

from eventing.replay.function_client import post_event
from localcluster.processes import wait_until_ready
from localcluster.programs import build
from localcluster.readiness import is_ready
from localcluster.up import state_directory
from localcluster.up.status import describe_state
from tests.functions.event_builders import build_tick
from tests.localcluster.commands import get_process_record, run_command, run_kubectl
from tests.machine_speed import is_below_scaled_limit

pytestmark = pytest.mark.slow

MAX_RESTART_SECONDS = 3.0
"""Maximum seconds from the first kill until the readiness endpoint responds again."""
TIMEOUT_SECONDS = 30.0
"""Timeout of the wait for a restart; longer than `MAX_RESTART_SECONDS`, so that a slow restart is measured."""
MAINTENANCE_RESOURCE = "nodemaintenance.nodemaintenance.medik8s.io"
ADDRESS_PATTERNS = {"functions": r"FUNCTIONS=(\S+)", "delivery": r"BROKER=(\S+)", "console": r"console: (\S+)"}
"""Patterns of the addresses in the output of `make up`."""


def start_maintenance(directory: Path) -> subprocess.Popen[str]:
    """Run `kubectl maintenance start` for node-1 without waiting for the command, and return its process."""
    command = [sys.executable, "-m", "console.cli", "start", "node-1", "--reason", "restarts"]
    environment = {**os.environ, "KUBECONFIG": str(directory / state_directory.KUBECONFIG_FILE)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish_maintenance(directory: Path) -> None:
    """Wait until the maintenance has succeeded, delete it, and check that the node is uncordoned.

    A tick replaces lost events. The test sends ticks itself instead of waiting up to 15 s for the PingSource.
    """
    broker = find_printed_address(directory, "delivery")
    run_kubectl(directory, "wait", MAINTENANCE_RESOURCE, "node-1", "--for=create", "--timeout=30s")
    wait_until_ready("the delivery", lambda: is_ready(broker), [], TIMEOUT_SECONDS)

    def has_succeeded() -> bool:
        assert post_event(build_tick(), broker).status_code == HTTPStatus.ACCEPTED
        phase = run_kubectl(directory, "get", MAINTENANCE_RESOURCE, "node-1", "-o", "jsonpath={.status.phase}")
        return phase == "Succeeded"

    wait_until_ready("the end of the drain", has_succeeded, [], 60)
    run_kubectl(directory, "delete", MAINTENANCE_RESOURCE, "node-1", "--timeout=60s")
    assert "unschedulable" not in run_kubectl(directory, "get", "node", "node-1", "-o", "json")


def find_printed_address(directory: Path, name: str) -> str:
    """Return the address of a process from the output of `make up`."""
    match = re.search(ADDRESS_PATTERNS[name], state_directory.read_ready_message(directory))
    assert match is not None
    return match[1]


@pytest.mark.parametrize("name", ADDRESS_PATTERNS)
def test_killed_process_is_restarted_within_three_seconds(running_state_dir: Path, name: str) -> None:
    """Check that a killed process is replaced by a new one, which is ready within three seconds."""
    address = find_printed_address(running_state_dir, name)
    killed_pid = get_process_record(running_state_dir, name).pid

    os.kill(killed_pid, signal.SIGKILL)
    started = time.monotonic()
    wait_until_ready(
        name,
        lambda: get_process_record(running_state_dir, name).pid != killed_pid and is_ready(address),
        [],
        TIMEOUT_SECONDS,
    )
    seconds = time.monotonic() - started
    print(f"{name}: running again after {seconds:.2f} s")
    assert is_below_scaled_limit(seconds, MAX_RESTART_SECONDS)


@pytest.mark.parametrize("name", ADDRESS_PATTERNS)
def test_drain_succeeds_if_process_is_killed_at_creation_of_maintenance(running_state_dir: Path, name: str) -> None:
    """Check that a maintenance succeeds if a process is killed while the maintenance is being created."""
    with start_maintenance(running_state_dir) as start_process:
        os.kill(get_process_record(running_state_dir, name).pid, signal.SIGKILL)
        assert start_process.wait(TIMEOUT_SECONDS) == 0, start_process.stdout and start_process.stdout.read()

    finish_maintenance(running_state_dir)


def test_control_plane_is_restarted_without_data_loss(running_state_dir: Path) -> None:
    """Check that the cluster and its data recover after a kill of etcd and all control-plane processes.

    kwok recovers as well, so that evicted pods terminate.
    """
    names = ("kwok", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
    uid = run_kubectl(running_state_dir, "get", "node", "node-1", "-o", "jsonpath={.metadata.uid}")
    killed_pids = {name: get_process_record(running_state_dir, name).pid for name in names}
    for pid in killed_pids.values():
        os.kill(pid, signal.SIGKILL)

    wait_until_ready(
        "new processes",
        lambda: all(get_process_record(running_state_dir, name).pid != killed_pids[name] for name in names),
        [],
        TIMEOUT_SECONDS,
    )
    wait_until_ready(
        "all processes",
        lambda: describe_state(state_directory.read_records(running_state_dir)) == "up",
        [],
        TIMEOUT_SECONDS,
    )
    wait_until_ready(
        "the API server",
        lambda: is_kubectl_successful(running_state_dir, "get", "--raw", "/readyz"),
        [],
        TIMEOUT_SECONDS,
    )
    assert run_kubectl(running_state_dir, "get", "node", "node-1", "-o", "jsonpath={.metadata.uid}") == uid
    run_kubectl(running_state_dir, "delete", "pods", "--selector=app=web", "--timeout=60s")
    run_kubectl(running_state_dir, "rollout", "status", "deployment/web", "--timeout=60s")
    with start_maintenance(running_state_dir) as start_process:
        assert start_process.wait(TIMEOUT_SECONDS) == 0, start_process.stdout and start_process.stdout.read()
    finish_maintenance(running_state_dir)


def is_kubectl_successful(directory: Path, *args: str) -> bool:
    """Return whether kubectl with these arguments succeeds."""
    command = [
        str(build.ensure_programs() / "kubectl"),
        f"--kubeconfig={directory / state_directory.KUBECONFIG_FILE}",
        *args,
    ]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_status_lists_processes_with_last_exit(running_state_dir: Path) -> None:
    """Check that `make status` lists each process's state, pid, restarts and last exit."""
    record_before = get_process_record(running_state_dir, "console")
    os.kill(record_before.pid, signal.SIGKILL)
    wait_until_ready(
        "the restart",
        lambda: get_process_record(running_state_dir, "console").restarts > record_before.restarts,
        [],
        TIMEOUT_SECONDS,
    )

    status = run_command(running_state_dir, "status")

    lines = {line.split()[0]: line for line in status.stdout.splitlines()}
    record = get_process_record(running_state_dir, "console")
    assert status.returncode == 0
    assert {"etcd", "kube-apiserver", "functions", "delivery", "console"} <= lines.keys()
    assert re.search(
        rf"running +{record.pid} +{record.restarts} +killed by SIGKILL, \d+ s ago; .*console.log$", lines["console"]
    )
    assert lines["up,"].startswith(f"up, supervisor {state_directory.read_supervisor_pid(running_state_dir)}, ")
