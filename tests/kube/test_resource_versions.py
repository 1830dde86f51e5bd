"""Tests for finding the newest or the oldest of several resourceVersions."""

from __future__ import annotations

import pytest

from kube.resource_versions import find_newest_resource_version, find_oldest_resource_version, is_resource_version


@pytest.mark.parametrize(
    ("versions", "expected_version"),
    [
        pytest.param(["9", "12", "11"], "12", id="numeric order"),
        pytest.param(["", "x", "7"], "7", id="empty and invalid versions"),
        pytest.param(["x", ""], "", id="no valid version"),
        pytest.param(["٣", "²", "-1", "1.5"], "", id="other kinds of digits"),
        pytest.param(["9" * 5000, "8"], "8", id="too many digits"),
    ],
)
def test_newest_valid_resource_version_is_found(versions: list[str], expected_version: str) -> None:
    """Check that the newest valid resourceVersion is returned, and that invalid texts in events raise no error."""
    assert find_newest_resource_version(versions) == expected_version


@pytest.mark.parametrize(
    ("versions", "expected_version"),
    [(["12", "9", "11"], "9"), (["7"], "7"), ([], ""), (["7", ""], ""), (["7", "x"], "")],
)
def test_oldest_resource_version_is_found_if_all_are_valid(versions: list[str], expected_version: str) -> None:
    """Check that the oldest resourceVersion is "" if any version is invalid, because its age is then unknown."""
    assert find_oldest_resource_version(versions) == expected_version


@pytest.mark.parametrize("value", [None, 7, {}, "", "0", "01", "1\n"])
def test_malformed_values_are_not_resource_versions(value: object) -> None:
    """X-1: malformed values, which an event may contain, are not resourceVersions."""
    assert not is_resource_version(value)
