"""Tests for sending AdmissionReviews at a constant rate, and for the statistics of their latencies."""

from __future__ import annotations

import asyncio

import pytest

from bench.admission.review_load import ALLOWED, REFUSED, WARNED, Latencies, build_review_request, call_at_constant_rate
from kube.admission.reviews import parse_review
from kube.paths import Object


def test_99th_percentile_is_exceeded_by_one_percent_of_latencies() -> None:
    latencies = Latencies([float(number) for number in range(100, 0, -1)])

    assert (latencies.median, latencies.p99) == (50.5, 100.0)
    assert Latencies([1.0] * 98 + [7.0, 9.0]).p99 == 9.0
    assert Latencies([1.0] * 198 + [7.0, 9.0]).p99 == 7.0
    assert Latencies([3.0]).p99 == 3.0


def test_slow_response_does_not_delay_other_requests() -> None:
    """Check that a slow response does not delay other requests, and that latency starts at the scheduled time."""
    requested: list[int] = []

    async def send_review(number: int) -> Object:
        requested.append(number)
        while number == 0 and len(requested) < 5:
            await asyncio.sleep(0)
        return {"allowed": number != 1, "warnings": ["w"] if number == 2 else []}

    latencies = asyncio.run(call_at_constant_rate(send_review, 1000, 5))

    assert requested == [0, 1, 2, 3, 4]
    assert (len(latencies.milliseconds), latencies.refused, latencies.warned) == (5, 1, 1)
    assert max(latencies.milliseconds) >= 4.0


@pytest.mark.parametrize(
    ("refused", "warned", "accepted_answers"),
    [(2, 0, {REFUSED}), (0, 2, {WARNED}), (0, 0, {ALLOWED}), (1, 0, set()), (0, 1, set())],
)
def test_measurement_fails_if_a_response_is_unexpected(refused: int, warned: int, accepted_answers: set[str]) -> None:
    """Check that the measurement fails unless every AdmissionReview gets the expected response.

    A webhook that rejects everything would be fast, and would be listed as "allowed".
    """
    latencies = Latencies([1.0, 2.0], refused, warned)

    for answer in (REFUSED, WARNED, ALLOWED):
        if answer in accepted_answers:
            latencies.check_responses(answer)
        else:
            with pytest.raises(RuntimeError, match=f"expected all 2 reviews to be {answer}: {refused} were "):
                latencies.check_responses(answer)


def test_webhook_parses_admission_review_of_benchmark() -> None:
    review = parse_review(build_review_request("node-7", 3))

    assert (review.uid, review.is_create, review.object["spec"]["nodeName"]) == ("review-3", True, "node-7")
