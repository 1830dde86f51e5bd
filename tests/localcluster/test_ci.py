"""What a change must pass gives a handful of failures one more try. A shell script stands in for make."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.localcluster.commands import ROOT

MAKE = """#!/bin/sh
echo "$*" >> calls
case "$*" in test) {deed}; exit 2;; esac
"""
FAILED = Path(".pytest_cache/v/cache/lastfailed")
WRITES = f"""echo '{{"tests/test_a.py::test_b": true}}' > {FAILED}"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Give a work tree in which some tests failed earlier."""
    for folder in (".ci", "path", ".venv/bin", str(FAILED.parent)):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / FAILED).write_text(json.dumps({"tests/test_old.py::test_old": True}))
    return tmp_path


@pytest.mark.parametrize(
    ("deed", "tests"),
    [("kill -KILL $$", ["test"]), (WRITES, ["test", "test ARGS=--last-failed"])],
    ids=["killed", "failed"],
)
def test_what_failed_is_tried_once_more_and_nothing_that_failed_earlier(
    tree: Path, deed: str, tests: list[str]
) -> None:
    """A run that is killed leaves no list of its own."""
    make = tree / "path" / "make"
    make.write_text(MAKE.format(deed=deed))
    make.chmod(0o755)
    path = f"{make.parent}:{os.environ['PATH']}"

    done = subprocess.run([tree / ".ci" / "run"], env={**os.environ, "PATH": path}, capture_output=True, text=True)

    calls = [line for line in (tree / "calls").read_text().splitlines() if line.startswith("test")]
    assert (calls, "test_old" in done.stdout) == (tests, False)
    assert "Traceback" not in done.stderr
