"""Tests that a run reports its failed tests only if it was complete; otherwise, more tests could have failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.failure_report import REPORT_VARIABLE
from tests.sources import ROOT

CONFTEST = "from tests.failure_report import pytest_configure\n"
CONFTEST_WITH_INTERNAL_ERROR = "def pytest_runtest_logfinish(nodeid):\n    raise RuntimeError(nodeid)\n"
TEST_FILE_TEMPLATE = """
def test_first():
    assert False

def test_second():
    {second}

def test_third():
    pass
"""
FIRST_TEST_ID, SECOND_TEST_ID = "test_some.py::test_first", "test_some.py::test_second"
CRASH_STATEMENT = "import os; os._exit(1)"
ONE_WORKER_OPTIONS = ("-p", "xdist", "-n", "1")


def run_pytest(
    folder: Path, second_test_body: str, *options: str, conftest_suffix: str = ""
) -> tuple[int, dict[str, str] | None]:
    """Run three tests, the first of which fails; return the exit status and the report, None if there is none."""
    (folder / "conftest.py").write_text(CONFTEST + conftest_suffix)
    (folder / "test_some.py").write_text(TEST_FILE_TEMPLATE.format(second=second_test_body))
    (folder / "pytest.ini").write_text("[pytest]\n")
    report = folder / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", *options, "--rootdir", str(folder), str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", REPORT_VARIABLE: str(report)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    return result.returncode, json.loads(report.read_text()) if report.exists() else None


def test_complete_run_reports_each_failed_test_with_reason(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, "pass") == (1, {FIRST_TEST_ID: "call: assert False"})


def test_report_of_run_without_failures_is_empty(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, "pass", "-k", "second") == (0, {})


@pytest.mark.slow
def test_crashed_test_is_reported_as_failed(tmp_path: Path) -> None:
    exit_code, report = run_pytest(tmp_path, CRASH_STATEMENT, *ONE_WORKER_OPTIONS)

    assert exit_code == 1
    assert report
    assert set(report) == {FIRST_TEST_ID, SECOND_TEST_ID}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second_test_body", "options", "conftest_suffix", "expected_exit_code"),
    [
        ("raise KeyboardInterrupt", (), "", 2),
        ("pass", (), CONFTEST_WITH_INTERNAL_ERROR, 3),
        ("pass", ("-x",), "", 1),
        (CRASH_STATEMENT, (*ONE_WORKER_OPTIONS, "--max-worker-restart", "0"), "", 1),
    ],
    ids=["interrupted", "internal-error", "first-failure", "crashed-workers"],
)
def test_incomplete_run_writes_no_report(
    tmp_path: Path, second_test_body: str, options: tuple[str, ...], conftest_suffix: str, expected_exit_code: int
) -> None:
    """Check that an interrupted or crashed run writes no report.

    If xdist has stopped replacing crashed workers, the exit status is the same as after a complete run with failed
    tests.
    """
    assert run_pytest(tmp_path, second_test_body, *options, conftest_suffix=conftest_suffix) == (
        expected_exit_code,
        None,
    )
