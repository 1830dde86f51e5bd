"""Highlights the syntax of JSON in HTML: keys, strings, numbers and constants have different colors. Pure functions."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

MAX_COLORED_CHARACTERS = 256 * 1024
"""Maximum length of text that is highlighted, because browsers take seconds to render more elements."""
TOKEN_PATTERN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*"(?=:))|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<constant>true|false|null|NaN|-?Infinity)"
)
"""Matches one token in the output of `json.dumps`."""


def color_json(text: str) -> Markup:
    """Escape JSON text and wrap each token in a `span`; only escape text over `MAX_COLORED_CHARACTERS`."""
    if len(text) > MAX_COLORED_CHARACTERS:
        return escape(text)
    parts: list[Markup] = []
    end = 0
    for match in TOKEN_PATTERN.finditer(text):
        parts.append(escape(text[end : match.start()]))
        parts.append(Markup('<span class="json-{}">{}</span>').format(match.lastgroup, match.group()))
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])
