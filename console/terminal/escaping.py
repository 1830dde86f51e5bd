"""Escapes untrusted text for the terminal, so that it cannot move the cursor, change colors or hide text.

The functions are pure.
"""

from __future__ import annotations

import unicodedata
from typing import Any

ESCAPED_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories to escape: control and format characters, surrogates, line and paragraph separators."""
ALLOWED_FORMATS = "\u200c\u200d"
"""Format characters that are not escaped, because many languages and emoji sequences need them."""


def escape(text: str) -> str:
    """Return the text on one line, with control characters escaped, such as `\\n` or `\\x1b`; keep backslashes."""
    if text.isprintable():
        return text
    return "".join(_escape_character(character) for character in text)


def escape_all(value: Any) -> Any:
    """Return the same structure of dicts and lists, with every string in it escaped."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {escape_all(key): escape_all(item) for key, item in value.items()}
    return [escape_all(item) for item in value] if isinstance(value, list) else value


def _escape_character(character: str) -> str:
    is_harmless = unicodedata.category(character) not in ESCAPED_CATEGORIES or character in ALLOWED_FORMATS
    return character if is_harmless else character.encode("unicode_escape").decode()
