"""Tests for the bounded queue, which limits the number and the total size of its items."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from functions.serving.bounded_queue import BoundedQueue

MAX_ITEMS, MAX_BYTES = 5, 100


@given(st.lists(st.integers(0, 150), max_size=30))
def test_queue_keeps_newest_items_within_limits(sizes: list[int]) -> None:
    """X-6: The queue holds as many of the newest items as fit, and returns the number of dropped items."""
    queue: BoundedQueue[int] = BoundedQueue(MAX_ITEMS, MAX_BYTES)

    dropped = sum(queue.append(number, size) for number, size in enumerate(sizes))
    remaining = queue.take(len(sizes))

    assert dropped + len(remaining) == len(sizes)
    assert remaining == list(range(dropped, len(sizes)))
    assert len(remaining) <= MAX_ITEMS
    assert sum(sizes[number] for number in remaining) <= MAX_BYTES
    if dropped:
        assert len(remaining) == MAX_ITEMS or sum(sizes[dropped - 1 :]) > MAX_BYTES


def test_bytes_of_removed_items_do_not_count() -> None:
    """X-6: The bytes of a removed item do not count towards the queue's size limit."""
    queue: BoundedQueue[str] = BoundedQueue(MAX_ITEMS, MAX_BYTES)
    queue.append("first", 60)

    assert queue.take(1) == ["first"]
    assert queue.append("second", 90) == 0
    assert (queue.take(9), len(queue)) == (["second"], 0)
