"""Tests that real nodes leave nothing on the machine, however they end, and that an unsuitable machine is reported."""

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
from tests.localcluster.commands import ROOT, kubectl, run, soon

pytestmark = pytest.mark.real
OLD_MACHINE = ["unshare", "--mount", "sh", "-c", 'umount -a -t cgroup,cgroup2; exec "$@"', "sh"]
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
AT_ONCE = 1.0
MAINTENANCE = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "real"}}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory for a cluster, and stop what a failed test left in it."""
    preflight.check()
    build.servers(build.NODES)
    yield tmp_path / "up"
    run(tmp_path / "up", "down")


def seen(directory: Path) -> dict[str, object]:
    """Return the traces of a cluster's nodes on this machine: processes, mounts, namespaces, devices and more."""
    return {
        "processes": [pid for pid in pids() if str(directory).encode() in command_line(pid)],
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(directory) in line],
        "named namespaces": sorted(path.name for path in Path("/run/netns").glob("*")),
        "network namespaces": {network for pid in pids() if (network := namespace(pid))},
        "devices": devices(),
        "routes": said("ip", "route"),
        "packet filters": [line for line in said("iptables-save").splitlines() if line[0] not in "#:"],
        "groups": [str(found) for tree in cgroups.trees() for found in tree.glob("nodemaintenance-*")],
        "folders": [name for name in ("/var/lib/kubelet", "/var/lib/cni", "/opt/containerd") if Path(name).exists()],
        "settings": [Path(f"/proc/sys/{name}").read_text() for name in ("vm/overcommit_memory", "kernel/panic")],
    }


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def devices() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def with_a_pod(directory: Path, delivery: str = "local") -> None:
    """Start a cluster with a real node and a running pod."""
    up = run(directory, "up", "--nodes", "1", "--real", "1", "--delivery", delivery)
    assert up.returncode == 0, up.stdout + up.stderr
    # the first process of a container ignores SIGTERM by default
    quick = json.dumps({"spec": {"terminationGracePeriodSeconds": 1}})
    kubectl(directory, "run", "one", "--image=localhost/busybox:local", f"--overrides={quick}", "--", "sleep", "1000")
    kubectl(directory, "wait", "pod/one", "--for=condition=Ready", "--timeout=60s")


def test_nothing_is_left_when_all_was_killed(directory: Path) -> None:
    """After all processes were killed, including those in containers, `make down` removes what the kernel keeps."""
    before = seen(directory)
    with_a_pod(directory)
    for group in (state_directory.supervisor_pid(directory), *state_directory.groups(directory)):
        kill(group)
    assert soon(lambda: seen(directory)["processes"] == [])
    assert soon(lambda: seen(directory)["network namespaces"] == before["network namespaces"])
    assert seen(directory)["groups"]
    down = run(directory, "down")

    assert down.returncode == 0
    assert soon(lambda: seen(directory) == before), seen(directory)


def test_down_leaves_nothing_of_a_drained_node_beside_knative(directory: Path) -> None:
    """After a drain with Knative, `make down` removes every process, mount, namespace, device, route and setting.

    This is `make up REAL=1 DELIVERY=knative`: kwok simulates Knative's pods, other pods run and are drained.
    """
    before = seen(directory)
    with_a_pod(directory, "knative")
    during = seen(directory)
    file = directory / "maintenance.json"
    file.write_text(json.dumps({**MAINTENANCE, "spec": {"nodeName": "real-1"}}))
    kubectl(directory, "create", "-f", str(file))
    kubectl(directory, "wait", "nm/real", "--for=condition=Drained", "--timeout=90s")
    pods = kubectl(directory, "get", "pods", "-n", "default", "-o", "name")
    down = run(directory, "down")

    assert pods == ""
    assert all(during[what] != before[what] for what in ("processes", "network namespaces", "devices", "groups"))
    assert (down.returncode, down.stdout) == (0, "down\n")
    assert soon(lambda: seen(directory) == before), seen(directory)


def kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.parametrize(
    ("where", "lacks"), [(AS_NOBODY, "root (sudo make up REAL=2)"), (OLD_MACHINE, "the cgroup controllers")]
)
def test_a_machine_that_cannot_says_so_at_once(where: list[str], lacks: str) -> None:
    """Commands on an unsuitable machine fail within a second with one line, before they install or build anything."""
    # only root may be able to read the venv's Python, so uid 65534 runs the system's
    python = "/usr/bin/python3" if where == AS_NOBODY and Path("/usr/bin/python3").exists() else sys.executable
    began = time.monotonic()
    words = [*where, python, "-m", "localcluster.programs.packages", "--real", "2", "up"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert time.monotonic() - began < AT_ONCE
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: REAL needs {lacks}"), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_fresh_machine_is_not_told_that_it_cannot() -> None:
    """Fresh machines, on which packages are still missing, are not reported as unsuitable."""
    words = [sys.executable, "-m", "localcluster.nodes.preflight"]
    bare = {**os.environ, "PATH": "/usr/bin:/bin"}  # iptables is not among these
    done = subprocess.run(words, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
