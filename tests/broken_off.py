"""Leaves no list of failed tests behind a run that was broken off, so that `.ci/run` does not try again those alone."""

from __future__ import annotations

from collections.abc import Generator

import pytest

FAILED = "cache/lastfailed"
WHOLE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""How a run ends in which each test that was wanted had its turn."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
    """Behind pytest, which writes the list in the main process, however the run ends."""
    yield
    if exitstatus not in WHOLE and session.config.cache and not hasattr(session.config, "workerinput"):
        session.config.cache.set(FAILED, {})
