"""Text of others on a terminal: what would move the cursor, recolour or hide is shown escaped, not obeyed. Pure."""

from __future__ import annotations

import unicodedata
from typing import Any

CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode: controls, marks that turn or hide text, halves of characters, ends of lines and paragraphs."""
JOINERS = "\u200c\u200d"
"""Formats that words of many languages, and joined pictures, are spelled with."""


def escaped(text: str) -> str:
    """The text on one line, each control character as `\\n`, `\\x1b` or `\\u202e`; the backslash stays as it is."""
    if text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def escaped_all(value: Any) -> Any:
    """The same object of dicts and lists, with every text in it escaped."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {escaped_all(key): escaped_all(item) for key, item in value.items()}
    return [escaped_all(item) for item in value] if isinstance(value, list) else value


def _escaped(character: str) -> str:
    harmless = unicodedata.category(character) not in CONTROLS or character in JOINERS
    return character if harmless else character.encode("unicode_escape").decode()
