"""Writes the tests that failed into a file, for `tests/second_try.py`; only if the run was complete.

After an incomplete run, as one that a crash ended, it is unknown what else would have failed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

VARIABLE = "FAILURE_REPORT"
"""The environment variable that names the file."""
COMPLETE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""Exit statuses of a run in which each selected test ran; one whose workers all crashed has such a status, too."""


class FailureReport:
    """Collects the failures of a run, in the process that controls it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._finished: set[str] = set()
        self._reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, and the last report of a test: its teardown, or, from xdist, that its worker crashed."""
        if report.failed:
            self._reasons.setdefault(report.nodeid, _reason(report))
        if report.when not in ("setup", "call"):
            self._finished.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        """Write the file, test → reason, after a complete run."""
        yield
        if exitstatus in COMPLETE and len(self._finished) >= session.testscollected:
            self._file.write_text(json.dumps(self._reasons))


def _reason(report: pytest.TestReport) -> str:
    """Return the first line of what went wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return f"{report.when}: {text.strip().partition(chr(10))[0][:200]}"


def pytest_configure(config: pytest.Config) -> None:
    """Collect failures if the environment names a file."""
    file = os.environ.get(VARIABLE)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureReport(Path(file)))
