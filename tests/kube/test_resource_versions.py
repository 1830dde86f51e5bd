"""Tests of which of several resourceVersions is the newest or the oldest."""

from __future__ import annotations

import pytest

from kube.resource_versions import find_newest, find_oldest, is_resource_version


@pytest.mark.parametrize(
    ("versions", "expected_version"),
    [
        pytest.param(["9", "12", "11"], "12", id="numeric order"),
        pytest.param(["", "x", "7"], "7", id="both empty"),
        pytest.param(["x", ""], "", id="one empty"),
        pytest.param(["٣", "²", "-1", "1.5"], "", id="digits of other kinds"),
        pytest.param(["9" * 5000, "8"], "8", id="invalid version"),
    ],
)
def test_newest_valid_version_is_found(versions: list[str], expected_version: str) -> None:
    """Return the newest valid version, and never raise an error for other texts that an event contains."""
    assert find_newest(versions) == expected_version


@pytest.mark.parametrize(
    ("versions", "expected_version"),
    [(["12", "9", "11"], "9"), (["7"], "7"), ([], ""), (["7", ""], ""), (["7", "x"], "")],
)
def test_oldest_version_is_found_if_all_are_valid(versions: list[str], expected_version: str) -> None:
    """Return an empty string if any version is invalid, because the age of that list is unknown."""
    assert find_oldest(versions) == expected_version


@pytest.mark.parametrize("value", [None, 7, {}, "", "0", "01", "1\n"])
def test_other_values_are_not_resource_versions(value: object) -> None:
    """X-1: other values, which an event may contain, are not resourceVersions."""
    assert not is_resource_version(value)
