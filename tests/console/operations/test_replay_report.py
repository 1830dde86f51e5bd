"""Tests for the last line of a replay's output."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.replay_report import ReplayResult, format_summary
from eventing import events
from eventing.journal.entries import Entry
from eventing.replay.function_client import FunctionResponse

POD = {"namespace": "default", "name": "a", "uid": "uid-a"}
PODS_EVICTED_REPLY = {"type": events.PODS_EVICTED, "data": {"evicted": [POD], "blocked": [{**POD, "uid": "uid-b"}]}}
SUMMARY_CASES = {
    "dry run": (True, (PODS_EVICTED_REPLY,), "dry run: no writes were stored"),
    "no eviction": (False, (), "all writes were stored"),
    "one eviction": (False, (PODS_EVICTED_REPLY,), "all writes were stored, including 1 eviction"),
    "one eviction in two responses": (
        False,
        (PODS_EVICTED_REPLY, PODS_EVICTED_REPLY),
        "all writes were stored, including 1 eviction",
    ),
    "invalid responses": (False, ({"type": "t", "data": "x"}, {"type": "t"}), "all writes were stored"),
}


@pytest.mark.parametrize(("dry_run", "replies", "expected"), SUMMARY_CASES.values(), ids=SUMMARY_CASES)
def test_summary_states_whether_writes_were_stored(
    dry_run: bool, replies: tuple[dict[str, object], ...], expected: str
) -> None:
    """X-2: The last line of the output states whether writes were stored; all other lines are equal in a dry run."""
    event = CloudEvent({"id": "1", "source": "/s", "type": events.NODE_TAINTED}, {})
    entry = Entry(1, datetime(2026, 1, 2, tzinfo=timezone.utc), event)

    summary = format_summary(
        [ReplayResult(entry, None, FunctionResponse("evict", 200, 0.1, replies), [])], dry_run=dry_run
    )

    assert summary == f"1 event, 1 response: 0 the same, 1 without a recorded response, 0 different; {expected}"
