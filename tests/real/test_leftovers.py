"""Tests that real nodes leave nothing on the machine, however they exit, and that unsuitable machines are reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.maintenance.groups import MEDIK8S
from localcluster.nodes import cgroups, preflight
from localcluster.programs import build
from localcluster.up import state_directory
from tests.localcluster.commands import ROOT, run_command, run_kubectl, wait_until

pytestmark = pytest.mark.real
WITHOUT_CGROUPS_COMMAND = ["unshare", "--mount", "sh", "-c", 'umount -a -t cgroup,cgroup2; exec "$@"', "sh"]
AS_USER_NOBODY_COMMAND = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
MAX_SECONDS = 1.0
MAINTENANCE_BODY = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "real"}}


@pytest.fixture
def cluster_directory(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory for a cluster, and stop the cluster if a failed test has left it running."""
    preflight.check_host()
    build.ensure_programs(build.NODES)
    yield tmp_path / "up"
    run_command(tmp_path / "up", "down")


def collect_traces(directory: Path) -> dict[str, object]:
    """Return the traces of a cluster's nodes on this machine: processes, mounts, namespaces, devices and more."""
    return {
        "processes": [pid for pid in list_pids() if str(directory).encode() in read_command_line(pid)],
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(directory) in line],
        "named namespaces": sorted(path.name for path in Path("/run/netns").glob("*")),
        "network namespaces": {network for pid in list_pids() if (network := read_network_namespace(pid))},
        "devices": list_network_devices(),
        "routes": read_command_output("ip", "route"),
        "packet filters": [line for line in read_command_output("iptables-save").splitlines() if line[0] not in "#:"],
        "groups": [str(group) for tree in cgroups.list_hierarchies() for group in tree.glob("nodemaintenance-*")],
        "folders": [name for name in ("/var/lib/kubelet", "/var/lib/cni", "/opt/containerd") if Path(name).exists()],
        "settings": [Path(f"/proc/sys/{name}").read_text() for name in ("vm/overcommit_memory", "kernel/panic")],
    }


def list_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def read_command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def read_network_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def list_network_devices() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


def read_command_output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def start_cluster_with_pod(directory: Path, engine: str = "local") -> None:
    """Start a cluster with a real node and a running pod."""
    up_result = run_command(directory, "up", "--nodes", "1", "--real", "1", "--delivery", engine)
    assert up_result.returncode == 0, up_result.stdout + up_result.stderr
    # The first process in a container ignores SIGTERM by default.
    options = json.dumps({"spec": {"terminationGracePeriodSeconds": 1}})
    run_kubectl(
        directory, "run", "one", "--image=localhost/busybox:local", f"--overrides={options}", "--", "sleep", "1000"
    )
    run_kubectl(directory, "wait", "pod/one", "--for=condition=Ready", "--timeout=60s")


def test_make_down_after_kill_leaves_nothing(cluster_directory: Path) -> None:
    """Check that after a kill of all processes, `make down` removes all traces, such as mounts and devices."""
    traces_before = collect_traces(cluster_directory)
    start_cluster_with_pod(cluster_directory)
    for group in (
        state_directory.read_supervisor_pid(cluster_directory),
        *state_directory.list_process_groups(cluster_directory),
    ):
        kill_process_group(group)
    assert wait_until(lambda: collect_traces(cluster_directory)["processes"] == [])
    assert wait_until(
        lambda: collect_traces(cluster_directory)["network namespaces"] == traces_before["network namespaces"]
    )
    assert collect_traces(cluster_directory)["groups"]
    down_result = run_command(cluster_directory, "down")

    assert down_result.returncode == 0
    assert wait_until(lambda: collect_traces(cluster_directory) == traces_before), collect_traces(cluster_directory)


def test_make_down_after_drain_with_knative_leaves_nothing(cluster_directory: Path) -> None:
    """Check that `make down` after a drain with Knative removes all processes, mounts, devices, routes and settings.

    The cluster is that of `make up REAL=1 DELIVERY=knative`: kwok simulates Knative's pods, and containerd runs all
    other pods.
    """
    traces_before = collect_traces(cluster_directory)
    start_cluster_with_pod(cluster_directory, "knative")
    traces_after_start = collect_traces(cluster_directory)
    file = cluster_directory / "maintenance.json"
    file.write_text(json.dumps({**MAINTENANCE_BODY, "spec": {"nodeName": "real-1"}}))
    run_kubectl(cluster_directory, "create", "-f", str(file))
    run_kubectl(cluster_directory, "wait", "nm/real", "--for=condition=Drained", "--timeout=90s")
    pods = run_kubectl(cluster_directory, "get", "pods", "-n", "default", "-o", "name")
    down_result = run_command(cluster_directory, "down")

    assert pods == ""
    assert all(
        traces_after_start[kind] != traces_before[kind]
        for kind in ("processes", "network namespaces", "devices", "groups")
    )
    assert (down_result.returncode, down_result.stdout) == (0, "down\n")
    assert wait_until(lambda: collect_traces(cluster_directory) == traces_before), collect_traces(cluster_directory)


def kill_process_group(process_group: int) -> None:
    try:
        os.killpg(process_group, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.parametrize(
    ("command_prefix", "missing"),
    [(AS_USER_NOBODY_COMMAND, "root (sudo make up REAL=2)"), (WITHOUT_CGROUPS_COMMAND, "the cgroup controllers")],
)
def test_unsuitable_machine_is_reported(command_prefix: list[str], missing: str) -> None:
    """Check that a command on an unsuitable machine fails within a second with one line, and installs nothing."""
    # User 65534 runs the system's Python, because perhaps only root can read the virtual environment's Python.
    python = (
        "/usr/bin/python3"
        if command_prefix == AS_USER_NOBODY_COMMAND and Path("/usr/bin/python3").exists()
        else sys.executable
    )
    started = time.monotonic()
    command = [*command_prefix, python, "-m", "localcluster.programs.packages", "--real", "2", "up"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert time.monotonic() - started < MAX_SECONDS
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: REAL needs {missing}"), result.stderr
    assert result.stderr.count("\n") == 1


def test_machine_without_installed_packages_is_suitable() -> None:
    """Check that a new machine, on which packages are still missing, is not reported as unsuitable."""
    command = [sys.executable, "-m", "localcluster.nodes.preflight"]
    variables = {**os.environ, "PATH": "/usr/bin:/bin"}  # No program `iptables` is on this PATH.
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)

    assert (result.returncode, result.stderr) == (0, "")
