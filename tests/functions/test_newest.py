"""What was written first is forgotten first."""

from __future__ import annotations

from functions.newest import Newest


def test_of_more_than_it_keeps_what_was_written_first_is_forgotten() -> None:
    """A key that is written again is new again."""
    known = Newest[str, int](2)
    for number, key in enumerate("abac"):
        known[key] = number

    assert dict(known) == {"a": 2, "c": 3}
