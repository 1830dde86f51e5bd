"""Tests of parsing times and ages that users enter."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from console.operations.time_parsing import parse_time_or_age


def test_age_is_subtracted_from_now() -> None:
    """Check that an age is subtracted from now, and that the result has a time zone."""
    before = datetime.now(timezone.utc)
    parsed = parse_time_or_age("2h")

    assert before <= parsed + timedelta(hours=2) <= datetime.now(timezone.utc)


@pytest.mark.parametrize("text", ["soon", "", "999999d", "1w", "9999-12-31T23:59:59-23:59"])
def test_invalid_time_names_valid_formats(text: str) -> None:
    """Check that an invalid time, or an age before the year 1, is an error that names valid formats."""
    with pytest.raises(ValueError, match="is neither an age, such as 10m"):
        parse_time_or_age(text)
