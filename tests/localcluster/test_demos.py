"""Tests that `make demo-mutex` runs a complete upgrade, and that its exit status shows the result."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kube.client.api_errors import Denied
from localcluster.demo.common import DemoError, run_demo
from localcluster.demo.upgrade import JOBS_PER_NODE, NEW_VERSION, format_progress
from tests.localcluster.commands import ROOT

pytestmark = pytest.mark.slow

WORKER_COUNT = 4
TIMEOUT_SECONDS = 180
ENDLESS_DEMO_SCRIPT = """
import signal, tempfile
from localcluster.demo.common import run_demo

def demo():
    with tempfile.TemporaryDirectory() as directory:
        print(directory, flush=True)
        while True:
            signal.pause()

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may have started these tests
run_demo(demo)
"""
"""Python script with a demo that runs until it is interrupted."""


@pytest.mark.parametrize(
    ("status", "expected_line"),
    [
        ({}, "new          "),
        ({"step": "Waiting"}, "Waiting      "),
        (
            {
                "step": "RunningJobs",
                "progress": "2 of 2: node-3",
                "job": "backup-1",
                "record": {"nodes": {"node-2": {"cleanedAt": "now"}, "node-3": {}}},
            },
            "■□  RunningJobs    2 of 2: node-3  backup-1",
        ),
    ],
)
def test_run_progress_is_one_line(status: dict[str, object], expected_line: str) -> None:
    """Check that the progress line shows the finished nodes, the run's step, and the current node and Job."""
    assert format_progress(status) == expected_line


@pytest.mark.parametrize(
    ("error", "expected_line"),
    [
        (DemoError("a node was not restored"), "error: a node was not restored"),
        (Denied(403, "pods is forbidden"), "error: pods is forbidden"),
        (OSError(errno.ENOSPC, "no space", "/x/etcd"), "error: [Errno 28] no space: '/x/etcd'"),
    ],
)
def test_error_of_demo_is_one_line(error: Exception, expected_line: str) -> None:
    """Check that the demo prints an error as one line, and exits with a status other than 0."""

    def demo() -> int:
        raise error

    with pytest.raises(SystemExit) as raised:
        run_demo(demo)
    assert raised.value.code == expected_line


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_demo_leaves_no_files(tmp_path: Path, signal_number: signal.Signals) -> None:
    """Check that SIGTERM and SIGHUP stop the demo like Ctrl-C, and that no files remain."""
    command, variables = [sys.executable, "-c", ENDLESS_DEMO_SCRIPT], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert Path(demo.stdout.readline().strip()).parent == tmp_path
        demo.send_signal(signal_number)
        remaining_output = demo.stdout.read()

    assert remaining_output == "• interrupted; everything that was started is stopped\n"
    assert demo.returncode == 128 + signal_number
    assert list(tmp_path.iterdir()) == []


def test_demo_runs_complete_upgrade() -> None:
    """Check that the demo exits with 0 after each worker was released once and each Job has completed.

    The MachineConfigPools are restored, and everything that the demo started is stopped.
    """
    command = ["make", "--no-print-directory", "demo-mutex"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)

    assert result.returncode == 0, result.stdout + result.stderr
    released = re.findall(r"(?:UpgradingNode|CleaningUp)\s+\d of 4: (node-\d)", result.stdout)
    assert list(dict.fromkeys(released)) == ["node-4", "node-5", "node-2", "node-3"]
    assert len(re.findall(r"^\S+-1 +Complete +1/1 ", result.stdout, re.MULTILINE)) == JOBS_PER_NODE * WORKER_COUNT
    assert len(re.findall(rf"^node-\d .* {re.escape(NEW_VERSION)} *$", result.stdout, re.MULTILINE)) == WORKER_COUNT
    assert result.stdout.endswith("• everything that was started is stopped\n")
