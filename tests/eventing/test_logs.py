"""Tests for the logging configuration, which run in a new process because pytest installs its own log handlers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOGGING_PROGRAM = "import logging; from eventing import logs; {setup}; logs.configure(); logging.warning('hello')"


def run_logging_program(setup: str) -> subprocess.CompletedProcess[str]:
    """Run `setup`, configure logging, and log a line, all in a new process; return the completed process."""
    command = [sys.executable, "-c", LOGGING_PROGRAM.format(setup=setup)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


def test_log_records_are_json_lines() -> None:
    """KNM-5: without other handlers, log records are written to stdout as JSON lines."""
    line = json.loads(run_logging_program("pass").stdout)

    assert (line["level"], line["msg"]) == ("warning", "hello")


def test_existing_logging_configuration_is_kept() -> None:
    """Check that an existing logging configuration, such as that of gunicorn, is kept."""
    result = run_logging_program("logging.basicConfig()")

    assert (result.stdout, result.stderr) == ("", "WARNING:root:hello\n")
