"""Tests of the delays between retries, which grow up to a maximum."""

from __future__ import annotations

from itertools import islice

from kube.backoff import GrowingPauses, pauses


def test_pauses_double_up_to_the_longest() -> None:
    """X-6: after a short failure the retry comes soon, and a lasting failure is retried at the longest interval."""
    assert list(islice(pauses(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_pauses_grow_on_whatever_their_bounds_are() -> None:
    """Delays keep growing across maxima, so that alternating failures cause no more retries than a single kind."""
    growing, bounds = GrowingPauses(0.5), (3.0, 9.0, 3.0, 9.0, 9.0, 3.0, 9.0)
    assert [growing.take(longest) for longest in bounds] == [0.5, 1.0, 2.0, 4.0, 8.0, 3.0, 6.0]
