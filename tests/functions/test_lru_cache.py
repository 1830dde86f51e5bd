"""Tests of `Newest`, a mapping that evicts its oldest entry."""

from __future__ import annotations

from functions.bounded_cache import Newest


def test_of_more_than_it_keeps_what_was_written_first_is_forgotten() -> None:
    """Entries written first are evicted first; writing a key again makes it the newest."""
    known = Newest[str, int](2)
    for number, key in enumerate("abac"):
        known[key] = number

    assert dict(known) == {"a": 2, "c": 3}
