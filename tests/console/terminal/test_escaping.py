"""Tests that text from other sources is escaped for the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.terminal.escaping import ALLOWED_FORMATS, escape, escape_all


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
    """Check that control characters are escaped, and that text in any language is unchanged."""
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


def test_all_strings_in_an_object_are_escaped() -> None:
    assert escape_all({"a\n": ["b\x1b", {"c": "d\r"}], "e": 1, "f": None}) == {
        "a\\n": ["b\\x1b", {"c": "d\\r"}],
        "e": 1,
        "f": None,
    }
