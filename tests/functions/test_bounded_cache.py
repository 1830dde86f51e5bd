"""Tests for `BoundedCache`, a mapping that evicts its oldest entry."""

from __future__ import annotations

from functions.bounded_cache import BoundedCache


def test_oldest_cache_entry_is_evicted() -> None:
    """Check that the entry that was written first is evicted first; writing a key again makes its entry the newest."""
    cache = BoundedCache[str, int](2)
    for number, key in enumerate("abac"):
        cache[key] = number

    assert dict(cache) == {"a": 2, "c": 3}
