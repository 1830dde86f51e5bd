"""Tests for the output on a terminal: escaped text, confirmations, and warnings during a live display."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click import termui
from hypothesis import given
from hypothesis import strategies as st

from console.terminal.output import ALLOWED_FORMATS, confirm, escape, escape_all, show_live, show_object
from tests.sources import ROOT

WARN_DURING_DISPLAY = """
from console.terminal.output import show_live, warn

with show_live(str, str) as show_state:
    show_state("the state")
    warn("no broker")
"""
ERASE_LINE = b"\x1b[2K"


def run_on_terminal(code: str, stderr_file: Path | None = None) -> bytes:
    """Run Python code on a pseudoterminal, and return its terminal output; `stderr_file` replaces its stderr."""
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
    except OSError:  # On Linux, the read fails once the last process has closed the terminal.
        pass
    os.close(terminal)
    assert process.wait(timeout=30) == 0, written
    return written


def test_warning_replaces_live_display_which_is_drawn_again_below() -> None:
    """Check that a warning starts on an erased line, so that the next redraw does not erase a part of the warning."""
    written = run_on_terminal(WARN_DURING_DISPLAY)

    before, warning, after = written.partition(b"Warning: no broker\r\n")
    assert warning
    assert before.endswith(ERASE_LINE)
    assert b"the state" in before
    assert b"the state" in after


def test_warning_goes_to_file_that_replaces_stderr(tmp_path: Path) -> None:
    """Check that a warning during a live display goes to stderr, even if only the display uses the terminal."""
    file = tmp_path / "stderr"

    written = run_on_terminal(WARN_DURING_DISPLAY, file)

    assert file.read_text() == "Warning: no broker\n"
    assert b"Warning" not in written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("new [disk] :smile: [/]", "new [disk] :smile: [/]"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("one\ntwo\r\tthree", "one\\ntwo\\r\\tthree"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("\ud800", "\\ud800"),
        ("neue Festplatte für Käthe, 磁盘, می‌خواهم", "neue Festplatte für Käthe, 磁盘, می‌خواهم"),
        ("1\u00a0TB", "1\u00a0TB"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    """Check that control characters are escaped, and that printable text in any language is unchanged."""
    assert escape(text) == expected


@pytest.mark.slow
@given(st.text())
def test_escaped_text_is_one_printable_line(text: str) -> None:
    """Check that any escaped text is one line without control characters."""
    escaped = escape(text)

    assert len(escaped.splitlines()) <= 1
    assert all(
        character.isprintable() or character in ALLOWED_FORMATS or character.isspace() or not character.isascii()
        for character in escaped
    )
    assert not set(escaped) & {chr(code) for code in (*range(32), *range(127, 160))}


def test_all_strings_in_object_are_escaped() -> None:
    assert escape_all({"a\n": ["b\x1b", {"c": "d\r"}], "e": 1, "f": None}) == {
        "a\\n": ["b\\x1b", {"c": "d\\r"}],
        "e": 1,
        "f": None,
    }


def test_ctrl_c_at_confirmation_ends_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Ctrl-C at a confirmation interrupts the command, while a closed stdin is an error with a remedy."""

    def raise_interrupt(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(termui, "visible_prompt_func", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        confirm("Redrive 2 dead letters?", "use --yes")


def test_live_output_in_pipe_has_each_changed_line_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Check that an unchanged line is not repeated, and that a line that reappears is printed again."""
    with show_live(str, str) as show_state:
        for state in ("a\nb", "a\nb", "a\nc", "b\nc"):
            show_state(state)

    lines = capsys.readouterr().out.splitlines()
    assert [line[20:] for line in lines] == ["a", "b", "c", "b"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line[:20]) for line in lines)


def test_live_output_in_structured_format_has_no_times(capsys: pytest.CaptureFixture[str]) -> None:
    for output in ("name", "json", "yaml"):
        with show_live(str, str, output) as show_state:
            show_state("a")

    assert capsys.readouterr().out == 'a\n"a"\n---\na\n...\n'


def test_object_is_printed_in_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    """Check that YAML output keeps the order of the fields, and escapes characters that could control the terminal."""
    for output in ("json", "yaml", "name", "table", "wide"):
        show_object({"b": "\x1b\u202e", "a": 1}, output, ["node/n\x1b"])

    assert capsys.readouterr().out == ('{\n  "b": "\\u001b\\u202e",\n  "a": 1\n}\nb: "\\e\\u202E"\na: 1\nnode/n\\x1b\n')
