"""`make demo-mutex` shows a whole upgrade, and its exit status says whether that happened."""

from __future__ import annotations

import re
import subprocess

import pytest

from localcluster.demo.telling import DemoError, tell
from localcluster.demo.upgrade import JOBS, NEW, progress_line
from tests.localcluster.commands import ROOT

WORKERS = 4
SECONDS = 180


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
    """How many nodes are done, and what the run does for which."""
    assert progress_line(status) == line


def test_what_is_not_shown_is_the_exit_status() -> None:
    """One line says what it was, and the status is not 0."""

    def story() -> int:
        raise DemoError("a node was left behind")

    with pytest.raises(SystemExit) as ended:
        tell(story)
    assert ended.value.code == "error: a node was left behind"


def test_the_demo_shows_an_upgrade_to_its_end() -> None:
    """Status 0: each worker released once, each Job complete, the pools as they were, and nothing left running."""
    words = ["make", "--no-print-directory", "demo-mutex"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)

    assert done.returncode == 0, done.stdout + done.stderr
    released = re.findall(r"(?:UpgradingNode|CleaningUp)\s+\d of 4: (node-\d)", done.stdout)
    assert list(dict.fromkeys(released)) == ["node-4", "node-5", "node-2", "node-3"]
    assert len(re.findall(r"^\S+-1 +Complete +1/1 ", done.stdout, re.MULTILINE)) == JOBS * WORKERS
    assert len(re.findall(rf"^node-\d .* {re.escape(NEW)} *$", done.stdout, re.MULTILINE)) == WORKERS
    assert done.stdout.endswith("• everything that was started is stopped\n")
