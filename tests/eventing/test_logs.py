"""Tests of the logging configuration in a separate process, because pytest installs its own handlers in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOGGING_PROGRAM = "import logging; from eventing import logs; {before}; logs.configure(); logging.warning('hello')"


def run_logging_program(before: str) -> subprocess.CompletedProcess[str]:
    """Run `before`, configure logging, log a line, and return the finished process."""
    command = [sys.executable, "-c", LOGGING_PROGRAM.format(before=before)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


def test_records_are_json_lines() -> None:
    """KNM-5: Without other handlers, log records are written to stdout as JSON lines."""
    line = json.loads(run_logging_program("pass").stdout)

    assert (line["level"], line["msg"]) == ("warning", "hello")


def test_existing_logging_configuration_is_kept() -> None:
    """Check that an existing logging configuration is kept, as that of gunicorn or of another host program."""
    result = run_logging_program("logging.basicConfig()")

    assert (result.stdout, result.stderr) == ("", "WARNING:root:hello\n")
