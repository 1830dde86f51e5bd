"""Leaves `.ci/run`, which asks for it, no list of failed tests behind a run that was broken off, to try those alone.

A run of a person's own, as one that `-x` or Ctrl-C has ended, keeps its list for `--last-failed`.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

FAILED = "cache/lastfailed"
ASKED = "FORGET_BROKEN_OFF"
"""The variable by which `.ci/run` asks."""
WHOLE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""How a run may end in which each test that was wanted had its turn; one whose workers all have crashed does, too."""


class Turns:
    """Counts the tests that had their turn, in the process that writes the list."""

    def __init__(self) -> None:
        self._had: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the last report of a test: of its teardown, or, from xdist, that its worker crashed."""
        if report.when not in ("setup", "call"):
            self._had.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        """Behind pytest, which writes the list however the run ends."""
        yield
        is_whole = exitstatus in WHOLE and len(self._had) >= session.testscollected
        if session.config.cache and not is_whole:
            session.config.cache.set(FAILED, {})


def pytest_configure(config: pytest.Config) -> None:
    """Count where somebody asks for it."""
    if os.environ.get(ASKED) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Turns())
