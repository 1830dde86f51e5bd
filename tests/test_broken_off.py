"""Who tries failed tests once more does so behind a whole run alone: of another nobody knows what else would fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broken_off import FAILED
from tests.sources import ROOT

CONFTEST = "from tests.broken_off import pytest_sessionfinish\n"
BREAKS = "def pytest_runtest_logfinish(nodeid):\n    raise RuntimeError(nodeid)\n"
TESTS = "def test_first():\n    assert False\n\ndef test_second():\n    {deed}\n"


@pytest.mark.parametrize(
    ("deed", "more", "status", "listed"),
    [
        ("pass", "", 1, ["test_some.py::test_first"]),
        ("raise KeyboardInterrupt", "", 2, []),
        ("pass", BREAKS, 3, []),
    ],
    ids=["whole", "interrupted", "internal-error"],
)
def test_only_a_run_that_came_to_its_end_lists_what_failed(
    tmp_path: Path, deed: str, more: str, status: int, listed: list[str]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST + more)
    (tmp_path / "test_some.py").write_text(TESTS.format(deed=deed))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    words = ["-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, check=False)

    found = json.loads((tmp_path / ".pytest_cache" / "v" / FAILED).read_text())
    assert (done.returncode, list(found)) == (status, listed)
