"""Tests of the bounded queue, which limits the number and the bytes of its items."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from functions.serving.bounded_queue import Waiting

MOST, BYTES = 5, 100


@given(st.lists(st.integers(0, 150), max_size=30))
def test_it_holds_the_newest_within_both_bounds(sizes: list[int]) -> None:
    """X-6: The queue holds as many of the newest items as fit, and reports the number of dropped ones."""
    queue: Waiting[int] = Waiting(MOST, BYTES)

    lost = sum(queue.append(number, size) for number, size in enumerate(sizes))
    left = queue.take(len(sizes))

    assert lost + len(left) == len(sizes)
    assert left == list(range(lost, len(sizes)))
    assert len(left) <= MOST
    assert sum(sizes[number] for number in left) <= BYTES
    if lost:
        assert len(left) == MOST or sum(sizes[lost - 1 :]) > BYTES


def test_what_was_taken_makes_room() -> None:
    """X-6: The bytes of a removed item no longer count."""
    queue: Waiting[str] = Waiting(MOST, BYTES)
    queue.append("first", 60)

    assert queue.take(1) == ["first"]
    assert queue.append("second", 90) == 0
    assert (queue.take(9), len(queue)) == (["second"], 0)
