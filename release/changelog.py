"""Reads a version's section in `CHANGELOG.md`, and sets its date. Pure functions."""

from __future__ import annotations

import re

from release.errors import ReleaseError

FILE_NAME = "CHANGELOG.md"
UNRELEASED = "not released yet"
"""The text that replaces the date in the heading of an unreleased version."""


def read_section(text: str, version: str) -> str:
    """Return the entries in a version's section, without the heading; a candidate may use its release's section.

    Raises `ReleaseError` if the section does not exist or is empty.
    """
    release = version.partition("-")[0]
    for number in (version, release):
        heading = _find_heading(text, number)
        if heading:
            entries = re.split("^## ", text[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0].strip()
            if entries:
                return entries
            raise ReleaseError(f"the section of version {number} in {FILE_NAME} is empty: describe what changed")
    remedy = f'add the heading "## {release} - {UNRELEASED}", and below it what changed'
    raise ReleaseError(f"{FILE_NAME} has no section for version {version}: {remedy}")


def set_date(text: str, version: str, date: str) -> str:
    """Return the changelog with this date in the version's heading; unchanged if the version has no section."""
    heading = _find_heading(text, version)
    return f"{text[: heading.start()]}## {version} - {date}{text[heading.end() :]}" if heading else text


def _find_heading(text: str, version: str) -> re.Match[str] | None:
    return re.search(rf"^## \[?{re.escape(version)}\]?(?: - .*)?$", text, re.MULTILINE)
