"""Tests for the filter of the list of events, which the page's URL contains."""

from __future__ import annotations

import pytest
from werkzeug.exceptions import BadRequest

from console.web.event_filter import EventFilter
from eventing.events import NODE_DRAINED


def test_filter_has_the_same_fields_after_a_round_trip_through_the_url() -> None:
    """Check that the URL of a filter contains exactly the fields that are set."""
    query = {"node": "a", "type": NODE_DRAINED, "since": "1h", "failed": "yes", "view": "time"}

    assert EventFilter.from_query({**query, "maintenance": "  ", "unknown": "x"}).as_query() == query
    assert EventFilter.from_query(query).as_query(view="") == {key: query[key] for key in query if key != "view"}
    assert EventFilter.from_query({"view": "unknown"}) == EventFilter()


def test_query_of_filter_selects_the_newest_matching_events() -> None:
    """Check that the query of the journal uses all fields of the filter."""
    query = EventFilter(node="a", maintenance="m", type=NODE_DRAINED, since="1h", failed=True).build_query()

    assert (query.node, query.maintenance, query.types, query.failed) == ("a", "m", (NODE_DRAINED,), True)
    assert query.since
    assert query.keep_newest
    assert not EventFilter().build_query().types


def test_invalid_time_is_rejected_with_the_name_of_the_field() -> None:
    """Check that the error about an invalid time names the field `since`."""
    with pytest.raises(BadRequest) as error:
        EventFilter(since="soon").build_query()

    assert str(error.value.description).startswith("since: ")
