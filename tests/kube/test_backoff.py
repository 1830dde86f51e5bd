"""Pauses that grow to a bound."""

from __future__ import annotations

from itertools import islice

from kube.backoff import GrowingPauses, pauses


def test_pauses_double_up_to_the_longest() -> None:
    """X-6: what is away for a moment is asked again at once, what stays away is not asked all the time."""
    assert list(islice(pauses(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_pauses_grow_on_whatever_their_bounds_are() -> None:
    """What answers in turns with failures of two kinds is asked no more often than what fails in one way."""
    growing, bounds = GrowingPauses(0.5), (3.0, 9.0, 3.0, 9.0, 9.0, 3.0, 9.0)
    assert [growing.take(longest) for longest in bounds] == [0.5, 1.0, 2.0, 4.0, 8.0, 3.0, 6.0]
