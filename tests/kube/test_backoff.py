"""Tests for the backoff delays between retries, which grow up to a maximum."""

from __future__ import annotations

from itertools import islice

from kube.backoff import ExponentialBackoff, generate_delays


def test_backoff_delays_double_up_to_maximum() -> None:
    """X-6: the first failure is retried soon, and a persistent failure with the maximum delay."""
    assert list(islice(generate_delays(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_backoff_delays_continue_to_grow_if_maximum_changes() -> None:
    """Check that delays continue to grow if the maximum changes, as when failures with different maxima alternate."""
    backoff, maxima = ExponentialBackoff(0.5), (3.0, 9.0, 3.0, 9.0, 9.0, 3.0, 9.0)
    assert [backoff.get_next_delay(maximum) for maximum in maxima] == [0.5, 1.0, 2.0, 4.0, 8.0, 3.0, 6.0]
