"""Tests for parsing dead letters of other brokers, and dead letters that clients have forged."""

from __future__ import annotations

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing.dead_letters import CODE_EXTENSION, DATA_EXTENSION, DESTINATION_EXTENSION, DeadLetter, parse_dead_letter
from tests.proofs import proves

ENVELOPE = {"id": "1", "source": "/test", "type": "t"}
DESTINATION_URL = "http://evict/"


@proves("X-1")
@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        pytest.param(
            {CODE_EXTENSION: "400", DATA_EXTENSION: "bm8="},
            DeadLetter(DESTINATION_URL, 400, "no"),
            id="as written by Knative",
        ),
        pytest.param({}, DeadLetter(DESTINATION_URL, 0, ""), id="without a reason"),
        pytest.param({DATA_EXTENSION: "not base64!"}, DeadLetter(DESTINATION_URL, 0, "not base64!"), id="plain data"),
        pytest.param({DATA_EXTENSION: "nó"}, DeadLetter(DESTINATION_URL, 0, "nó"), id="non-ASCII data"),
        pytest.param({CODE_EXTENSION: "gone"}, DeadLetter(DESTINATION_URL, 0, ""), id="a code that is not a number"),
        pytest.param(
            {CODE_EXTENSION: "9" * 5000},
            DeadLetter(DESTINATION_URL, 0, ""),
            id="a code with more digits than an integer may have",
        ),
    ],
)
def test_dead_letter_with_any_failure_reason_is_parsed(extensions: dict[str, str], expected: DeadLetter) -> None:
    """X-1: an invalid status in a dead letter is parsed as 0, and error data that is not base64 is kept as text."""
    assert (
        parse_dead_letter(CloudEvent({**ENVELOPE, DESTINATION_EXTENSION: DESTINATION_URL, **extensions}, None))
        == expected
    )
