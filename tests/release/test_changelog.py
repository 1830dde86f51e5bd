"""Tests for the changelog's sections, from which the release notes are generated."""

from __future__ import annotations

import pytest

from release.changelog import FILE_NAME, read_section, set_date
from release.errors import ReleaseError
from release.versions import ROOT, read_version
from tests.release.conftest import CHANGELOG


@pytest.mark.parametrize("version", ["1.2.3", "1.2.3-rc.1"])
def test_changelog_section_ends_at_next_heading(version: str) -> None:
    """Check that the notes of a release and of its candidates contain the entries in the release's section."""
    assert read_section(CHANGELOG, version) == "- A node is drained faster."


def test_last_changelog_section_ends_at_end_of_file() -> None:
    assert read_section(CHANGELOG, "1.2.1") == "- The first release."


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            "1.3.0",
            "CHANGELOG.md has no section for version 1.3.0: "
            'add the heading "## 1.3.0 - not released yet", and below it what changed',
        ),
        ("1.2.2", "the section of version 1.2.2 in CHANGELOG.md is empty: describe what changed"),
        ("1x2.3", "CHANGELOG.md has no section for version 1x2.3: "),
    ],
)
def test_missing_changelog_section_is_reported(version: str, message: str) -> None:
    """Check that the error about a missing changelog section names the remedy."""
    with pytest.raises(ReleaseError) as error:
        read_section(CHANGELOG, version)

    assert str(error.value).startswith(message)


def test_date_replaces_text_in_heading_of_version() -> None:
    """Check that only the heading of the released version gets the date."""
    dated = set_date(CHANGELOG, "1.2.3", "2026-02-01")

    assert dated == CHANGELOG.replace("1.2.3 - not released yet", "1.2.3 - 2026-02-01")


def test_release_candidate_does_not_date_section_of_release() -> None:
    assert set_date(CHANGELOG, "1.2.3-rc.1", "2026-02-01") == CHANGELOG


def test_changelog_has_section_of_current_version() -> None:
    """Check that this project's changelog has a section for the version in pyproject.toml."""
    assert read_section((ROOT / FILE_NAME).read_text(), read_version())
