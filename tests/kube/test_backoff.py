"""Pauses that grow to a bound."""

from __future__ import annotations

from itertools import islice

from kube.backoff import pauses


def test_pauses_double_up_to_the_longest() -> None:
    """X-6: what is away for a moment is asked again at once, what stays away is not asked all the time."""
    assert list(islice(pauses(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
