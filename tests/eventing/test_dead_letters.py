"""Tests that dead letters from other brokers, or from clients that imitate one, are parsed as far as possible."""

from __future__ import annotations

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing.dead_letters import CODE_EXTENSION, DATA_EXTENSION, DESTINATION_EXTENSION, DeadLetter, parse_dead_letter
from tests.proofs import proves

ENVELOPE = {"id": "1", "source": "/test", "type": "t"}
DESTINATION_URL = "http://evict/"


@proves("X-1")
@pytest.mark.parametrize(
    ("extensions", "dead_letter"),
    [
        pytest.param(
            {CODE_EXTENSION: "400", DATA_EXTENSION: "bm8="},
            DeadLetter(DESTINATION_URL, 400, "no"),
            id="as Knative writes it",
        ),
        pytest.param({}, DeadLetter(DESTINATION_URL, 0, ""), id="without a reason"),
        pytest.param({DATA_EXTENSION: "not base64!"}, DeadLetter(DESTINATION_URL, 0, "not base64!"), id="plain data"),
        pytest.param({DATA_EXTENSION: "nó"}, DeadLetter(DESTINATION_URL, 0, "nó"), id="data beyond ASCII"),
        pytest.param({CODE_EXTENSION: "gone"}, DeadLetter(DESTINATION_URL, 0, ""), id="a code that is not a number"),
        pytest.param(
            {CODE_EXTENSION: "9" * 5000},
            DeadLetter(DESTINATION_URL, 0, ""),
            id="a code of extensions digits than a number may have",
        ),
    ],
)
def test_any_failure_reason_is_parsed(extensions: dict[str, str], dead_letter: DeadLetter) -> None:
    """X-1: An invalid status of a dead letter is parsed as 0, and error data that is not base64 is kept as text."""
    assert (
        parse_dead_letter(CloudEvent({**ENVELOPE, DESTINATION_EXTENSION: DESTINATION_URL, **extensions}, None))
        == dead_letter
    )
