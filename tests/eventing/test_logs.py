"""Where log records go, in a process of its own: pytest has handlers of its own in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAYS = "import logging; from eventing import logs; {before}; logs.configure(); logging.warning('hello')"


def run(before: str) -> subprocess.CompletedProcess[str]:
    """Configure after `before`, and log a line."""
    words = [sys.executable, "-c", SAYS.format(before=before)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)


def test_records_go_out_as_lines_of_json() -> None:
    """KNM-5: where nobody has said otherwise."""
    line = json.loads(run("pass").stdout)

    assert (line["level"], line["msg"]) == ("warning", "hello")


def test_who_has_said_where_records_go_is_left_alone() -> None:
    """Gunicorn has, by the same settings, and so may a host that serves the functions."""
    done = run("logging.basicConfig()")

    assert (done.stdout, done.stderr) == ("", "WARNING:root:hello\n")
