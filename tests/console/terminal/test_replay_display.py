"""Tests of how a replay is displayed on a terminal."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.replay_report import Replayed
from console.terminal.replay_display import lost_lines, replay_lines
from eventing.journal.entries import Entry
from eventing.replay.function_client import Answer
from eventing.replay.response_diff import Difference
from tests.console.commands.test_escaping import EVIL, SHOWN


@pytest.mark.parametrize("explained", ["", EVIL])
def test_what_a_recording_says_is_shown_and_not_obeyed(explained: str) -> None:
    """X-6: The replay's display escapes text from recorded events and responses.

    Any client that may post an event chooses its fields, and a function's response may repeat them.
    """
    event = CloudEvent({"id": EVIL, "source": "/s", "type": EVIL}, {})
    difference = Difference(EVIL, "cordon", EVIL, EVIL, [EVIL], explained)
    now = Answer(EVIL, 503, 0.1, error=EVIL)

    lines = replay_lines(Replayed(Entry(1, datetime.now(timezone.utc), event), None, now, [difference])).plain

    assert lines.count(SHOWN) >= 5
    assert "\x1b" not in lines + lost_lines([EVIL]).plain
    assert "\u202e" not in lines
