"""Tests for the display of a replay on a terminal."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.replay_report import ReplayResult
from console.terminal.replay_display import render_missing_objects, render_replay
from eventing.journal.entries import Entry
from eventing.replay.function_client import FunctionResponse
from eventing.replay.response_diff import Difference
from tests.console.commands.test_escaping import ESCAPED_TEXT, UNSAFE_TEXT


@pytest.mark.parametrize("explanation", ["", UNSAFE_TEXT])
def test_text_from_recorded_events_and_responses_is_escaped(explanation: str) -> None:
    """X-6: Text from recorded events and responses is escaped when a replay is displayed.

    Any client that may post events controls their attributes, and a function's response may repeat them.
    """
    event = CloudEvent({"id": UNSAFE_TEXT, "source": "/s", "type": UNSAFE_TEXT}, {})
    difference = Difference(UNSAFE_TEXT, "cordon", UNSAFE_TEXT, UNSAFE_TEXT, [UNSAFE_TEXT], explanation)
    current = FunctionResponse(UNSAFE_TEXT, 503, 0.1, error=UNSAFE_TEXT)

    text = render_replay(ReplayResult(Entry(1, datetime.now(timezone.utc), event), None, current, [difference])).plain

    assert text.count(ESCAPED_TEXT) >= 5
    assert "\x1b" not in text + render_missing_objects([UNSAFE_TEXT]).plain
    assert "\u202e" not in text
