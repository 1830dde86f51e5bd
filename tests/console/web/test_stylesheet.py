"""Test that every CSS class in the console's stylesheet is used."""

from __future__ import annotations

import re
from pathlib import Path

import console.web

FOLDER = Path(console.web.__file__).parent
COMMENT_OR_URL_PATTERN = re.compile(r"/\*.*?\*/|url\('[^']*'\)", re.DOTALL)
SELECTOR_PATTERN = re.compile(r"[^{}]+(?=\{)")
CLASS_PATTERN = re.compile(r"\.([a-zA-Z][\w-]*)")
JSON_CLASS_PREFIX = "json-"
"""Prefix of the CSS classes whose names `json_markup` derives from the kinds of JSON tokens."""


def test_every_class_of_stylesheet_is_used() -> None:
    """Check that a template, the script or a view names each CSS class, so that unused rules are deleted."""
    rules = COMMENT_OR_URL_PATTERN.sub("", (FOLDER / "static" / "console.css").read_text())
    classes = {name for selector in SELECTOR_PATTERN.findall(rules) for name in CLASS_PATTERN.findall(selector)}
    sources = [*FOLDER.glob("templates/*.html"), FOLDER / "static" / "console.js", *FOLDER.glob("*.py")]
    words = set(re.findall(r"[\w-]+", "\n".join(source.read_text() for source in sources)))

    assert len(classes) > 100
    assert {name for name in classes - words if not name.startswith(JSON_CLASS_PREFIX)} == set()
