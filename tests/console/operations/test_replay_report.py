"""Tests of the last line of a replay's output."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.replay_report import Replayed, summary
from eventing import events
from eventing.journal.entries import Entry
from eventing.replay.function_client import Answer

POD = {"namespace": "default", "name": "a", "uid": "uid-a"}
EVICTED = {"type": events.PODS_EVICTED, "data": {"evicted": [POD], "blocked": [{**POD, "uid": "uid-b"}]}}
WRITES = {
    "dry": (True, (EVICTED,), "a dry run: no write was kept"),
    "nothing evicted": (False, (), "each write was kept"),
    "one evicted": (False, (EVICTED,), "each write was kept, 1 eviction among them"),
    "one told of twice": (False, (EVICTED, EVICTED), "each write was kept, 1 eviction among them"),
    "odd answers": (False, ({"type": "t", "data": "x"}, {"type": "t"}), "each write was kept"),
}


@pytest.mark.parametrize(("dry_run", "replies", "expected"), WRITES.values(), ids=WRITES)
def test_the_last_line_says_whether_writes_were_kept(
    dry_run: bool, replies: tuple[dict[str, object], ...], expected: str
) -> None:
    """X-2: The last line states whether writes were kept; a dry run and a real replay print the same results."""
    event = CloudEvent({"id": "1", "source": "/s", "type": events.NODE_TAINTED}, {})
    entry = Entry(1, datetime(2026, 1, 2, tzinfo=timezone.utc), event)

    line = summary([Replayed(entry, None, Answer("evict", 200, 0.1, replies), [])], dry_run=dry_run)

    assert line == f"1 event, 1 answer: 0 the same, 1 with nothing recorded to compare, 0 different; {expected}"
