"""Tests for the filter of the list of events, which the page's URL contains."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent
from werkzeug.exceptions import BadRequest

from console.web.event_filter import PAGE_SIZE, EventFilter, split_page
from eventing.events import NODE_DRAINED
from eventing.journal.entries import Entry


def test_filter_has_the_same_fields_after_a_round_trip_through_the_url() -> None:
    """Check that the URL of a filter's page contains all fields that are set, and only these."""
    query = {"node": "a", "type": NODE_DRAINED, "since": "2h", "until": "1h", "failed": "yes", "view": "time"}
    query["before"] = "7"

    assert EventFilter.from_query({**query, "maintenance": "  ", "unknown": "x"}).as_query() == query
    assert EventFilter.from_query(query).as_query(view="") == {key: query[key] for key in query if key != "view"}
    for before in ("", "-1", "x", "9" * 5000):
        assert EventFilter.from_query({"view": "unknown", "before": before}) == EventFilter()


def test_query_of_filter_selects_the_newest_matching_events() -> None:
    """Check that all fields of the filter apply to the query of the journal."""
    times = {"since": "2026-01-01T00:00Z", "until": "2026-01-02T00:00Z"}
    query = EventFilter(node="a", maintenance="m", type=NODE_DRAINED, **times, failed=True, before=7).build_query()

    assert (query.node, query.maintenance, query.types, query.failed) == ("a", "m", (NODE_DRAINED,), True)
    assert query.since
    assert query.until
    assert query.until - query.since == timedelta(days=1)
    assert (query.before_seq, query.limit) == (7, PAGE_SIZE + 1)
    assert query.keep_newest
    assert not EventFilter().build_query().types


@pytest.mark.parametrize("field", ["since", "until"])
def test_invalid_time_is_rejected_with_the_name_of_the_field(field: str) -> None:
    """Check that the error about an invalid time names the field."""
    with pytest.raises(BadRequest) as error:
        EventFilter.from_query({field: "soon"}).build_query()

    assert str(error.value.description).startswith(f"{field}: ")


def test_time_without_offset_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a time without an offset is in UTC, as on the page, whatever the server's time zone is."""
    monkeypatch.setenv("TZ", "UTC-5")
    time.tzset()
    try:
        query = EventFilter(since="2026-01-01T12:00", until="2026-01-01T12:00-01:00").build_query()
    finally:
        monkeypatch.undo()
        time.tzset()

    assert query.since == datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    assert query.until == datetime(2026, 1, 1, 13, tzinfo=timezone.utc)


@pytest.mark.parametrize(("since", "until"), [("1h", "2h"), ("2026-01-01", "2026-01-01T00:00")])
def test_empty_period_is_rejected_with_the_names_of_both_fields(since: str, until: str) -> None:
    """Check that a period in which no event can be is rejected, with an error that names both fields."""
    with pytest.raises(BadRequest, match="until is not after since"):
        EventFilter(since=since, until=until).build_query()


def test_pages_follow_one_another_without_gap_or_repetition() -> None:
    """Check that the next page begins with the entry that this page has no space for, whatever the arrival times."""
    event = CloudEvent({"id": "1", "source": "/s", "type": "t"}, {})
    arrived = datetime(2026, 1, 1, tzinfo=timezone.utc)
    entries = [Entry(seq, arrived, event) for seq in (5, 3, 4)]

    shown, before = split_page(entries, 2)

    assert [entry.seq for entry in shown] == [5, 4]
    assert before == 4
    assert split_page(shown, 2) == (shown, 0)
