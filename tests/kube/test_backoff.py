"""Tests for the delays between retries, which grow up to a maximum."""

from __future__ import annotations

from itertools import islice

from kube.backoff import ExponentialBackoff, generate_delays


def test_delays_double_up_to_the_maximum() -> None:
    """X-6: the first failure is retried soon, and a lasting failure at the longest interval."""
    assert list(islice(generate_delays(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_delays_keep_growing_if_the_maximum_changes() -> None:
    """Check that delays keep growing if the maximum changes, so that alternating failures cause no extra retries."""
    backoff, maxima = ExponentialBackoff(0.5), (3.0, 9.0, 3.0, 9.0, 9.0, 3.0, 9.0)
    assert [backoff.get_next_delay(maximum) for maximum in maxima] == [0.5, 1.0, 2.0, 4.0, 8.0, 3.0, 6.0]
