"""Pytest plugin that writes the failed tests of a complete run to a file, which `tests/second_try.py` reads.

A run is incomplete, for example, if it crashed: other tests might have failed later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

REPORT_VARIABLE = "FAILURE_REPORT"
"""Environment variable with the path of the file for the failed tests."""
COMPLETE_RUN_STATUSES = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""Exit statuses of a complete run, in which each selected test ran, and of a run in which all workers crashed."""


class FailureReport:
    """Pytest plugin that collects a run's failures in the process that controls the xdist workers."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._finished: set[str] = set()
        self._reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the test's failure, if any, and count the test as finished after its last report.

        The last report of a test is that of its teardown, or xdist's report that the worker crashed.
        """
        if report.failed:
            self._reasons.setdefault(report.nodeid, _format_reason(report))
        if report.when not in ("setup", "call"):
            self._finished.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        """Write each failed test with its reason to the file after a complete run."""
        yield
        if exitstatus in COMPLETE_RUN_STATUSES and len(self._finished) >= session.testscollected:
            self._file.write_text(json.dumps(self._reasons))


def _format_reason(report: pytest.TestReport) -> str:
    """Return the phase in which the test failed, and the first line of the error message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return f"{report.when}: {text.strip().partition(chr(10))[0][:200]}"


def pytest_configure(config: pytest.Config) -> None:
    """Register the failure report if `REPORT_VARIABLE` is set."""
    file = os.environ.get(REPORT_VARIABLE)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureReport(Path(file)))
