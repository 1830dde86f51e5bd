"""Tests for parsing times and ages that users enter."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from console.operations.time_parsing import parse_time_or_age


def test_age_is_subtracted_from_current_time() -> None:
    """Check that an age is subtracted from the current time, and that the result has a time zone."""
    earliest_now = datetime.now(timezone.utc)
    parsed = parse_time_or_age("2h")

    assert earliest_now <= parsed + timedelta(hours=2) <= datetime.now(timezone.utc)


@pytest.mark.parametrize("text", ["soon", "", "999999d", "1w", "9999-12-31T23:59:59-23:59"])
def test_error_about_invalid_time_names_valid_formats(text: str) -> None:
    """Check that an invalid time, or an age that reaches before the year 1, is an error that names valid formats."""
    with pytest.raises(ValueError, match="is neither an age, such as 10m"):
        parse_time_or_age(text)
