"""Tests that tests marked `abreast` run concurrently, and that each of them reports its own result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.sources import ROOT

TEST_FILE_SOURCE = """
import threading
import pytest

together = threading.Barrier(3)

@pytest.fixture(scope="module")
def shared():
    return 7

@pytest.mark.abreast
@pytest.mark.parametrize("number", [7, 8])
def test_compares(shared, number):
    together.wait(20)
    assert shared == number

@pytest.mark.abreast
def test_without_arguments():
    together.wait(20)

def test_without_mark():
    assert together.n_waiting == 0
"""


def test_tests_marked_abreast_run_concurrently_with_separate_results(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.concurrent_tests import pytest_pyfunc_call\n")
    (tmp_path / "test_meeting.py").write_text(TEST_FILE_SOURCE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    abreast\n")

    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert "test_meeting.py::test_compares[8]" in result.stdout
    assert "1 failed, 3 passed" in result.stdout
