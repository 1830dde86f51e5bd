"""Tests of parsing times and ages that users enter."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from console.operations.time_parsing import parse_moment


def test_so_long_ago() -> None:
    """Check that an age is subtracted from now, and that the result has a time zone."""
    before = datetime.now(timezone.utc)
    said = parse_moment("2h")

    assert before <= said + timedelta(hours=2) <= datetime.now(timezone.utc)


@pytest.mark.parametrize("text", ["soon", "", "999999d", "1w", "9999-12-31T23:59:59-23:59"])
def test_what_is_no_time_is_said_with_what_would_be_one(text: str) -> None:
    """Check that an invalid time, or an age before the year 1, is an error that names valid formats."""
    with pytest.raises(ValueError, match="is neither so long ago, such as 10m"):
        parse_moment(text)
