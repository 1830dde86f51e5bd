"""Tests of which of several resourceVersions is the newest or the oldest."""

from __future__ import annotations

import pytest

from kube.resource_versions import is_version, newest, oldest


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        pytest.param(["9", "12", "11"], "12", id="by number, not by text"),
        pytest.param(["", "x", "7"], "7", id="what is none is none"),
        pytest.param(["x", ""], "", id="none"),
        pytest.param(["٣", "²", "-1", "1.5"], "", id="digits of other kinds"),
        pytest.param(["9" * 5000, "8"], "8", id="no number of any server"),
    ],
)
def test_the_newest(versions: list[str], found: str) -> None:
    """Return the newest valid version, and never raise an error for other texts that an event contains."""
    assert newest(versions) == found


@pytest.mark.parametrize(
    ("versions", "found"), [(["12", "9", "11"], "9"), (["7"], "7"), ([], ""), (["7", ""], ""), (["7", "x"], "")]
)
def test_the_oldest(versions: list[str], found: str) -> None:
    """Return an empty string if any version is invalid, because the age of that list is unknown."""
    assert oldest(versions) == found


@pytest.mark.parametrize("value", [None, 7, {}, "", "0", "01", "1\n"])
def test_what_is_no_version(value: object) -> None:
    """X-1: other values, which an event may contain, are not resourceVersions."""
    assert not is_version(value)
