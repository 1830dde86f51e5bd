"""Escapes untrusted text for the terminal, so that it cannot move the cursor, change colors or hide text.

The functions are pure.
"""

from __future__ import annotations

import unicodedata
from typing import Any

CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories to escape: control and format characters, surrogates, line and paragraph separators."""
JOINERS = "\u200c\u200d"
"""Format characters that stay, because the spelling of many languages and emoji sequences need them."""


def escaped(text: str) -> str:
    """Return the text on one line, with control characters as `\\n`, `\\x1b` or `\\u202e`; a backslash stays."""
    if text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def escaped_all(value: Any) -> Any:
    """Return the same structure of dicts and lists, with every text in it escaped."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {escaped_all(key): escaped_all(item) for key, item in value.items()}
    return [escaped_all(item) for item in value] if isinstance(value, list) else value


def _escaped(character: str) -> str:
    harmless = unicodedata.category(character) not in CONTROLS or character in JOINERS
    return character if harmless else character.encode("unicode_escape").decode()
