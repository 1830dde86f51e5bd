"""Formats JSON as HTML in which keys, texts, numbers and constants have different colors. Pure functions."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

MAX_COLORED_CHARACTERS = 256 * 1024
"""Maximum length of a colored text; a browser needs seconds to show the elements of a longer one."""
TOKEN_PATTERN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*"(?=:))|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<constant>true|false|null|NaN|-?Infinity)"
)
"""Matches one token of a text that `json.dumps` wrote."""


def color_json(text: str) -> Markup:
    """Return the escaped JSON text with a `span` around each token; a very long text is only escaped."""
    if len(text) > MAX_COLORED_CHARACTERS:
        return escape(text)
    parts: list[Markup] = []
    end = 0
    for match in TOKEN_PATTERN.finditer(text):
        parts.append(escape(text[end : match.start()]))
        parts.append(Markup('<span class="json-{}">{}</span>').format(match.lastgroup, match.group()))
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])
