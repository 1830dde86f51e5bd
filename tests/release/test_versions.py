"""Tests for the product's version: its format, and the files that contain it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from release.errors import ReleaseError
from release.versions import ROOT, check_version, list_version_files, read_version, write_version


@pytest.mark.parametrize("version", ["0.1.0", "1.2.3", "10.0.0", "1.2.3-alpha.0", "1.2.3-beta.2", "1.2.3-rc.1"])
def test_semantic_version_is_accepted(version: str) -> None:
    """Check that a semantic version is accepted if it is also valid for a Python package."""
    check_version(version)

    assert Version(version).is_prerelease == ("-" in version)


@pytest.mark.parametrize(
    "version", ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3.4", "1.2.3-", "1.2.3-rc", "1.2.3-next.1", "1.2.3+build", "a"]
)
def test_version_in_other_format_is_rejected(version: str) -> None:
    """Check that the error about a version in another format names the accepted format."""
    with pytest.raises(ReleaseError) as error:
        check_version(version)

    reason = f'version "{version}" is not a semantic version that can be released'
    assert str(error.value).startswith(f"{reason}: write MAJOR.MINOR.PATCH, ")


@pytest.mark.parametrize("file", list_version_files(), ids=lambda file: file.parent.name)
def test_each_file_has_version_of_project(file: Path) -> None:
    """Check that each file that other tools read contains the version in pyproject.toml."""
    found = re.findall(r'^(?:version = "|version: "?|appVersion: "?)([^"\s]+)', file.read_text(), re.MULTILINE)

    assert found
    assert set(found) == {read_version()}


def test_version_is_written_into_each_file(small_repository: Path) -> None:
    """Check that the version is replaced in each file, and that all other content stays unchanged."""
    write_version("1.2.3-rc.1", small_repository)

    assert read_version(small_repository) == "1.2.3-rc.1"
    assert (small_repository / "pyproject.toml").read_text().endswith('\nversion = "1.2.3-rc.1" # kept\n')
    chart = (small_repository / "charts" / "drain" / "Chart.yaml").read_text()
    assert chart == "apiVersion: v2\nname: drain\nversion: 1.2.3-rc.1\nappVersion: 1.2.3-rc.1\n"


def test_project_without_version_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")

    with pytest.raises(ReleaseError, match=r'has no line `version = "..."`: add it'):
        read_version(tmp_path)


def test_default_directory_is_this_project() -> None:
    assert (ROOT / "release" / "versions.py").is_file()
