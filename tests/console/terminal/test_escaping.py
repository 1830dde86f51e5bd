"""Tests that text from others is escaped for the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.terminal.escaping import JOINERS, escaped, escaped_all


@pytest.mark.parametrize(
    ("text", "shown"),
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
def test_a_control_character_is_shown_and_not_obeyed(text: str, shown: str) -> None:
    """Check that control characters are escaped, and that text in other languages is unchanged."""
    assert escaped(text) == shown


@pytest.mark.slow
@given(st.text())
def test_what_is_shown_is_one_line_that_can_be_printed(text: str) -> None:
    """Check that any escaped text is one line without control characters."""
    shown = escaped(text)

    assert len(shown.splitlines()) <= 1
    assert all(
        letter.isprintable() or letter in JOINERS or letter.isspace() or not letter.isascii() for letter in shown
    )
    assert not set(shown) & {chr(code) for code in (*range(32), *range(127, 160))}


def test_every_text_of_an_object_is_escaped() -> None:
    assert escaped_all({"a\n": ["b\x1b", {"c": "d\r"}], "e": 1, "f": None}) == {
        "a\\n": ["b\\x1b", {"c": "d\\r"}],
        "e": 1,
        "f": None,
    }
