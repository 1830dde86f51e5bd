"""Tests for JSON rendered as HTML, with a color for each kind of token."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from console.web.json_markup import MAX_COLORED_CHARACTERS, color_json

TAG_PATTERN = re.compile(r"</?span[^>]*>")


def remove_tags(html: str) -> str:
    return unescape(TAG_PATTERN.sub("", html))


def test_each_kind_of_token_has_its_own_css_class() -> None:
    """Check that keys, strings, numbers and constants have different CSS classes, even if a string contains JSON."""
    html = color_json(json.dumps({"a": ["b", -1.5e3, True, None], "c: 1": 'd "e": 2'}, indent=1))

    tokens = re.findall(r'<span class="json-(\w+)">([^<]*)</span>', html)
    assert [(kind, unescape(text)) for kind, text in tokens] == [
        *(("key", '"a"'), ("text", '"b"'), ("number", "-1500.0"), ("constant", "true"), ("constant", "null")),
        *(("key", '"c: 1"'), ("text", '"d \\"e\\": 2"')),
    ]


@pytest.mark.parametrize("value", ["<script>alert(1)</script>", "</span><img src=x>", 'a"b\\', "é\u2028&amp;", {}, []])
def test_json_text_is_escaped_and_unchanged(value: object) -> None:
    """Check that a browser shows exactly the JSON text, and that the text creates no HTML elements."""
    text = json.dumps({"key": value}, indent=2, ensure_ascii=False)
    html = str(color_json(text))

    assert remove_tags(html) == text
    assert "<" not in TAG_PATTERN.sub("", html)


def test_very_long_json_has_no_markup() -> None:
    """Check that JSON with too many tokens for a browser is only escaped, without markup."""
    text = json.dumps([1] * MAX_COLORED_CHARACTERS)

    assert str(color_json(text)) == text
