"""Tests for warnings during a live display, in a process whose output goes to a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.sources import ROOT

WARN_DURING_DISPLAY = """
from console.terminal.output import show_live, warn

with show_live(str, str) as show_state:
    show_state("the state")
    warn("no broker")
"""
ERASE_LINE = b"\x1b[2K"


def run_on_terminal(code: str, stderr_file: Path | None = None) -> bytes:
    """Run Python code on a pseudoterminal, and return what it has written there; the file replaces its stderr."""
    terminal, process_side = os.openpty()
    with (stderr_file or Path(os.devnull)).open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdout=process_side,
            stderr=file if stderr_file else process_side,
            env={**os.environ, "TERM": "xterm"},
        )
    os.close(process_side)
    written = b""
    try:
        while chunk := os.read(terminal, 65536):
            written += chunk
    except OSError:  # On Linux, the read fails when the last process has closed the terminal.
        pass
    os.close(terminal)
    assert process.wait(timeout=30) == 0, written
    return written


def test_warning_replaces_live_display_which_is_drawn_again_below() -> None:
    """Check that a warning starts on an erased line, so that the next redraw does not erase a part of it."""
    written = run_on_terminal(WARN_DURING_DISPLAY)

    before, warning, after = written.partition(b"Warning: no broker\r\n")
    assert warning
    assert before.endswith(ERASE_LINE)
    assert b"the state" in before
    assert b"the state" in after


def test_warning_goes_to_file_that_replaces_stderr(tmp_path: Path) -> None:
    """Check that a warning during a live display goes to stderr, even if only the display is on a terminal."""
    file = tmp_path / "stderr"

    written = run_on_terminal(WARN_DURING_DISPLAY, file)

    assert file.read_text() == "Warning: no broker\n"
    assert b"Warning" not in written
