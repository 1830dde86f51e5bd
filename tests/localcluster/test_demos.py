"""`make demo-mutex` runs a complete upgrade, and its exit status reports whether it succeeded."""

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
from localcluster.demo.common import DemoError, tell
from localcluster.demo.upgrade import JOBS, NEW, progress_line
from tests.localcluster.commands import ROOT

pytestmark = pytest.mark.slow

WORKERS = 4
SECONDS = 180
WAITING = """
import signal, tempfile
from localcluster.demo.common import tell

def story():
    with tempfile.TemporaryDirectory() as folder:
        print(folder, flush=True)
        while True:
            signal.pause()

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may have started these tests
tell(story)
"""
"""A demo that runs until it is interrupted."""


@pytest.mark.parametrize(
    ("status", "line"),
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
def test_the_status_is_one_line(status: dict[str, object], line: str) -> None:
    """Check that the line has the finished nodes, the run's step, and the node and Job in progress."""
    assert progress_line(status) == line


@pytest.mark.parametrize(
    ("trouble", "line"),
    [
        (DemoError("a node was left behind"), "error: a node was left behind"),
        (Denied(403, "pods is forbidden"), "error: pods is forbidden"),
        (OSError(errno.ENOSPC, "no space", "/x/etcd"), "error: [Errno 28] no space: '/x/etcd'"),
    ],
)
def test_what_is_not_shown_is_the_exit_status(trouble: Exception, line: str) -> None:
    """Check that an error becomes one line and an exit status other than 0."""

    def story() -> int:
        raise trouble

    with pytest.raises(SystemExit) as ended:
        tell(story)
    assert ended.value.code == line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Check that SIGTERM or SIGHUP stops the demo as Ctrl-C does, without leaving files."""
    words, where = [sys.executable, "-c", WAITING], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, cwd=ROOT, env=where, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert Path(demo.stdout.readline().strip()).parent == tmp_path
        demo.send_signal(number)
        last = demo.stdout.read()

    assert last == "• interrupted; everything that was started is stopped\n"
    assert demo.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_the_demo_shows_an_upgrade_to_its_end() -> None:
    """Check that the demo exits with status 0 after releasing each worker once and completing each Job.

    The pools are restored, and everything that was started is stopped.
    """
    words = ["make", "--no-print-directory", "demo-mutex"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)

    assert done.returncode == 0, done.stdout + done.stderr
    released = re.findall(r"(?:UpgradingNode|CleaningUp)\s+\d of 4: (node-\d)", done.stdout)
    assert list(dict.fromkeys(released)) == ["node-4", "node-5", "node-2", "node-3"]
    assert len(re.findall(r"^\S+-1 +Complete +1/1 ", done.stdout, re.MULTILINE)) == JOBS * WORKERS
    assert len(re.findall(rf"^node-\d .* {re.escape(NEW)} *$", done.stdout, re.MULTILINE)) == WORKERS
    assert done.stdout.endswith("• everything that was started is stopped\n")
