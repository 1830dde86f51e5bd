"""AdmissionReviews at a constant rate, and the statistics of their latencies."""

from __future__ import annotations

import asyncio

import pytest

from bench.admission.review_load import ALLOWED, REFUSED, WARNED, Waits, paced, review
from kube.admission.reviews import question
from kube.paths import Object


def test_one_in_a_hundred_exceeds_the_99th_percentile() -> None:
    waits = Waits([float(number) for number in range(100, 0, -1)])

    assert (waits.median, waits.p99) == (50.5, 100.0)
    assert Waits([1.0] * 98 + [7.0, 9.0]).p99 == 9.0
    assert Waits([1.0] * 198 + [7.0, 9.0]).p99 == 7.0
    assert Waits([3.0]).p99 == 3.0


def test_a_slow_answer_holds_up_no_other_question() -> None:
    """Check that a slow response delays no other request, and that a latency counts from the due time."""
    asked: list[int] = []

    async def one(number: int) -> Object:
        asked.append(number)
        while number == 0 and len(asked) < 5:
            await asyncio.sleep(0)
        return {"allowed": number != 1, "warnings": ["w"] if number == 2 else []}

    waits = asyncio.run(paced(one, 1000, 5))

    assert asked == [0, 1, 2, 3, 4]
    assert (len(waits.milliseconds), waits.refused, waits.warned) == (5, 1, 1)
    assert max(waits.milliseconds) >= 4.0


@pytest.mark.parametrize(
    ("refused", "warned", "answers"),
    [(2, 0, {REFUSED}), (0, 2, {WARNED}), (0, 0, {ALLOWED}), (1, 0, set()), (0, 1, set())],
)
def test_waits_count_for_the_one_answer_that_all_questions_had(refused: int, warned: int, answers: set[str]) -> None:
    """Check that latencies are accepted only if all requests got the expected answer.

    A webhook that rejects everything would be fast, and would be listed as "allowed".
    """
    waits = Waits([1.0, 2.0], refused, warned)

    for answer in (REFUSED, WARNED, ALLOWED):
        if answer in answers:
            waits.must_be(answer)
        else:
            with pytest.raises(RuntimeError, match=f"each of 2 questions was to be {answer}, and {refused} were "):
                waits.must_be(answer)


def test_a_question_is_one_that_the_webhook_judges() -> None:
    asked = question(review("node-7", 3))

    assert (asked.uid, asked.creates, asked.object["spec"]["nodeName"]) == ("question-3", True, "node-7")
