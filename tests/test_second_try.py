"""Tests that `.ci/run` retries a failed test once and reports the retry; a shell script replaces make."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.second_try import (
    MAX_SECOND_TRIES,
    MAX_SECOND_TRIES_OF_MAKE_TEST,
    REPORT_FILE,
    RetriedTest,
    find_failure_reason,
)
from tests.sources import ROOT

MAKE_SCRIPT = """#!/bin/sh
echo "$*" >> calls
case "$*" in lint) exit;; {cases} *) echo '{{}}' > "$FAILURE_REPORT";; esac
"""
FAILING_CASE = """echo '{"tests/test_a.py::test_b": "call: assert 1 == 2"}' > "$FAILURE_REPORT"; exit 2;;"""
PASSING_CASE = """echo '{}' > "$FAILURE_REPORT";;"""
TEST_ID = "tests/test_a.py::test_b"


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    """Create a work tree with the files that `.ci/run` uses, and the single test `tests/test_a.py::test_b`."""
    for folder in (".ci", "path", ".venv/bin", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    for name in ("__init__.py", "second_try.py", "failure_report.py", "machine_speed.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    preflight = tmp_path / "localcluster" / "nodes" / "preflight.py"
    preflight.parent.mkdir(parents=True)
    for package in (preflight.parent, preflight.parent.parent):
        (package / "__init__.py").touch()
    preflight.write_text("print('no root')\nraise SystemExit(3)\n")
    (tmp_path / "tests" / "test_a.py").write_text("def test_b():\n    pass\n")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return tmp_path


def run_ci(tree: Path, cases: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run `.ci/run` with a fake `make` that has these shell `case` branches; return the result and make's arguments."""
    make = tree / "path" / "make"
    make.write_text(MAKE_SCRIPT.format(cases=cases))
    make.chmod(0o755)
    path = f"{make.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        [tree / ".ci" / "run", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    return result, (tree / "calls").read_text().splitlines()


def test_report_contains_first_failure_and_outcome_of_retry(work_tree: Path) -> None:
    result, calls = run_ci(work_tree, f'"test ARGS=--last-failed") {PASSING_CASE} test) {FAILING_CASE}', "--all")

    assert calls == ["lint", "test", "test ARGS=--last-failed", "e2e", "test-slow"]
    line = f"{TEST_ID} (make test): first failed (call: assert 1 == 2), then passed\n"
    assert (work_tree / REPORT_FILE).read_text() == line
    assert f"tests that needed a second try: 1\n{line}" in result.stdout
    assert result.returncode == 0


def test_run_fails_if_test_fails_twice(work_tree: Path) -> None:
    result, calls = run_ci(work_tree, f"test*) {FAILING_CASE}")

    assert calls == ["lint", "test", "test ARGS=--last-failed"]
    assert result.returncode == 1
    assert "then failed again (call: assert 1 == 2)" in result.stdout
    assert result.stderr.endswith(f"error: failed twice: {TEST_ID}\n")


def test_run_fails_if_another_test_fails_at_retry(work_tree: Path) -> None:
    """Check that `.ci/run` fails if a test that did not run at first fails during the retry.

    The target has two pytest runs; the second one starts only if the first one passes.
    """
    other_failing_case = FAILING_CASE.replace("test_b", "test_c")

    result, calls = run_ci(work_tree, f'"test ARGS=--last-failed") {other_failing_case} test) {FAILING_CASE}')

    assert calls == ["lint", "test", "test ARGS=--last-failed"]
    assert result.returncode == 1
    assert result.stderr == "error: other tests of make test failed at the second try: tests/test_a.py::test_c\n"


def test_killed_run_is_not_retried(work_tree: Path) -> None:
    result, calls = run_ci(work_tree, "test) kill -KILL $$;;")

    assert calls == ["lint", "test"]
    assert result.returncode == 1
    assert result.stderr == "error: make test ended before all of its tests had run\n"


def test_run_without_report_is_incomplete(work_tree: Path) -> None:
    """Check that a run without a report fails, as pytest exits with 0 if its workers die before the first test."""
    result, _ = run_ci(work_tree, "test) ;;")

    assert result.returncode == 1
    assert result.stderr == "error: make test ended before all of its tests had run\n"


@pytest.mark.slow
def test_last_line_of_run_reports_that_real_nodes_were_not_tested(work_tree: Path) -> None:
    result, _ = run_ci(work_tree, "")

    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == (
        "not run: make e2e-real, because this host cannot run real nodes: no root"
    )
    assert "tests that needed a second try: none\n" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "is_run"), [((), False), (("--all",), True)])
def test_target_that_would_end_too_late_is_skipped(work_tree: Path, arguments: tuple[str, ...], is_run: bool) -> None:
    """Check that the last line names the skipped target; the fake `date` reports that the run began 70 minutes ago."""
    date = work_tree / "path" / "date"
    date.write_text(f"#!/bin/sh\necho {int(time.time()) - 4200}\n")
    date.chmod(0o755)

    result, calls = run_ci(work_tree, "", *arguments)

    assert calls == ["lint", "test", "e2e", *(["test-slow"] if is_run else [])]
    assert ("not run: make test-slow, because 70 minutes had passed" in result.stdout) is not is_run
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("make_test_count", "other_count", "reason"),
    [
        (MAX_SECOND_TRIES_OF_MAKE_TEST, MAX_SECOND_TRIES - MAX_SECOND_TRIES_OF_MAKE_TEST, ""),
        (MAX_SECOND_TRIES_OF_MAKE_TEST + 1, 0, "4 tests of make test needed a second try, at most 3 may"),
        (1, MAX_SECOND_TRIES, "11 tests needed a second try, at most 10 may"),
    ],
)
def test_run_fails_if_too_many_tests_need_retry(make_test_count: int, other_count: int, reason: str) -> None:
    second_tries = [
        RetriedTest(f"test_{number}", "", "", number < make_test_count)
        for number in range(make_test_count + other_count)
    ]

    assert find_failure_reason(second_tries) == reason
