"""Who tries failed tests once more does so behind a whole run alone: of another nobody knows what else would fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broken_off import ASKED, FAILED
from tests.sources import ROOT

CONFTEST = "from tests.broken_off import pytest_configure\n"
BREAKS = "def pytest_runtest_logfinish(nodeid):\n    raise RuntimeError(nodeid)\n"
TESTS = """
def test_first():
    assert False

def test_second():
    {deed}

def test_third():
    pass
"""
FIRST, SECOND = "test_some.py::test_first", "test_some.py::test_second"
CRASHES = "import os; os._exit(1)"
ONE = ("-p", "xdist", "-n", "1")


def ended(folder: Path, deed: str, *words: str, more: str = "", asked: str = "1") -> tuple[int, list[str]]:
    """The exit status of a run of three tests, of which the first fails, and the failed ones that it lists."""
    (folder / "conftest.py").write_text(CONFTEST + more)
    (folder / "test_some.py").write_text(TESTS.format(deed=deed))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", *words, "--rootdir", str(folder), str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", ASKED: asked}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    return done.returncode, list(json.loads((folder / ".pytest_cache" / "v" / FAILED).read_text()))


@pytest.mark.parametrize(
    ("deed", "words", "more", "status", "listed"),
    [
        ("pass", (), "", 1, [FIRST]),
        ("raise KeyboardInterrupt", (), "", 2, []),
        ("pass", (), BREAKS, 3, []),
        ("pass", ("-x",), "", 1, []),
        (CRASHES, ONE, "", 1, [FIRST, SECOND]),
        (CRASHES, (*ONE, "--max-worker-restart", "0"), "", 1, []),
    ],
    ids=["whole", "interrupted", "internal-error", "first-failure", "crashed-worker", "crashed-workers"],
)
def test_only_a_run_that_came_to_its_end_lists_what_failed(
    tmp_path: Path, deed: str, words: tuple[str, ...], more: str, status: int, listed: list[str]
) -> None:
    """Where xdist gives up on workers that crash, the exit status is that of a test that failed."""
    assert ended(tmp_path, deed, *words, more=more) == (status, listed)


def test_a_persons_own_run_lists_what_failed_however_it_ends(tmp_path: Path) -> None:
    """They try that again, and know what they broke off."""
    assert ended(tmp_path, "pass", "-x", asked="") == (1, [FIRST])


def test_the_run_before_a_commit_asks_for_whole_runs() -> None:
    assert f"export {ASKED}=1" in (ROOT / ".ci/run").read_text()
