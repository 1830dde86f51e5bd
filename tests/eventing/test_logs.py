"""Tests of the logging configuration in a separate process, because pytest installs its own handlers in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAYS = "import logging; from eventing import logs; {before}; logs.configure(); logging.warning('hello')"


def run(before: str) -> subprocess.CompletedProcess[str]:
    """Run `before`, configure logging, log a line, and return the finished process."""
    words = [sys.executable, "-c", SAYS.format(before=before)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)


def test_records_go_out_as_lines_of_json() -> None:
    """KNM-5: Without other handlers, log records are written to stdout as JSON lines."""
    line = json.loads(run("pass").stdout)

    assert (line["level"], line["msg"]) == ("warning", "hello")


def test_who_has_said_where_records_go_is_left_alone() -> None:
    """Check that an existing logging configuration is kept, as that of gunicorn or of another host program."""
    done = run("logging.basicConfig()")

    assert (done.stdout, done.stderr) == ("", "WARNING:root:hello\n")
