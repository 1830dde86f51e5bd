"""Tests that dead letters from other brokers, or from clients that imitate one, are parsed as far as possible."""

from __future__ import annotations

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing.dead_letters import CODE, DATA, DESTINATION, DeadLetter, dead_letter_of
from tests.proofs import proves

ENVELOPE = {"id": "1", "source": "/test", "type": "t"}
WHERE = "http://evict/"


@proves("X-1")
@pytest.mark.parametrize(
    ("more", "letter"),
    [
        pytest.param({CODE: "400", DATA: "bm8="}, DeadLetter(WHERE, 400, "no"), id="as Knative writes it"),
        pytest.param({}, DeadLetter(WHERE, 0, ""), id="without a reason"),
        pytest.param({DATA: "no base64!"}, DeadLetter(WHERE, 0, "no base64!"), id="plain data"),
        pytest.param({DATA: "nó"}, DeadLetter(WHERE, 0, "nó"), id="data beyond ASCII"),
        pytest.param({CODE: "gone"}, DeadLetter(WHERE, 0, ""), id="a word for a code"),
        pytest.param({CODE: "9" * 5000}, DeadLetter(WHERE, 0, ""), id="a code of more digits than a number may have"),
    ],
)
def test_whatever_its_reason_says_it_is_read(more: dict[str, str], letter: DeadLetter) -> None:
    """X-1: An invalid status of a dead letter is parsed as 0, and error data that is not base64 is kept as text."""
    assert dead_letter_of(CloudEvent({**ENVELOPE, DESTINATION: WHERE, **more}, None)) == letter
