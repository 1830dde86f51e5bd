"""The filter of the list of events, as the page's form and its URL contain it, and the pages of the list."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from werkzeug.exceptions import BadRequest

from console.operations.descriptions import parse_time_or_age
from eventing.journal.entries import Entry, Query

PAGE_SIZE = 200
"""Maximum number of events on one page."""
TEXT_FIELDS = ("node", "maintenance", "type", "since", "until")
EVENT_NUMBER_PATTERN = re.compile("[0-9]{1,18}")
"""Matches an event's number; a longer one exceeds the database's range."""
BY_TIME = "time"
"""Value of `view` for one list in order of arrival; by default, the events are grouped by object."""


@dataclass(frozen=True)
class EventFilter:
    """The events to list: all fields are optional.

    Attributes:
        maintenance: Name or uid of the maintenance, or of an object of the upgrade mutex.
        since, until: Each a time or an age, as `parse_time_or_age` accepts it; a time without an offset is in UTC.
        before: Number of the event before which the page ends, 0 for the page with the newest events.
        view: `BY_TIME`, or "" to group the events by object.
    """

    node: str = ""
    maintenance: str = ""
    type: str = ""
    since: str = ""
    until: str = ""
    failed: bool = False
    view: str = ""
    before: int = 0

    @classmethod
    def from_query(cls, fields: Mapping[str, str]) -> EventFilter:
        """Parse the fields of a URL's query; unknown views and invalid event numbers are ignored."""
        texts = {name: fields.get(name, "").strip() for name in TEXT_FIELDS}
        view = BY_TIME if fields.get("view") == BY_TIME else ""
        before = fields.get("before", "")
        number = int(before) if EVENT_NUMBER_PATTERN.fullmatch(before) else 0
        return cls(**texts, failed=bool(fields.get("failed")), view=view, before=number)

    def as_query(self, **changes: str | int) -> dict[str, str]:
        """Return the fields for the query of a URL, with these changes and without empty fields."""
        fields = {**vars(self), "failed": "yes" if self.failed else "", **changes}
        return {name: str(value) for name, value in fields.items() if value}

    def build_query(self) -> Query:
        """Build the query for a page of the newest matching events, and for one older event, if there is one.

        Raises `BadRequest` if `since` or `until` is invalid, or if no event can match both.
        """
        since, until = _parse_time("since", self.since), _parse_time("until", self.until)
        if since and until and until <= since:
            raise BadRequest("until is not after since, so no event can match: correct or swap them")
        return Query(
            node=self.node,
            maintenance=self.maintenance,
            types=(self.type,) if self.type else (),
            since=since,
            until=until,
            failed=self.failed,
            before_seq=self.before,
            limit=PAGE_SIZE + 1,
            keep_newest=True,
        )


def _parse_time(name: str, text: str) -> datetime | None:
    try:
        return parse_time_or_age(text, timezone.utc) if text else None  # The page shows all times in UTC.
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from None


def split_page(entries: Sequence[Entry], page_size: int) -> tuple[list[Entry], int]:
    """Return the entries without an older one that the page has no space for, and the number `before` of the next page.

    The number is 0 if there are no older events. `entries` has at most one entry more than the page.
    """
    if len(entries) <= page_size:
        return list(entries), 0
    older_seq = min(entry.seq for entry in entries)
    return [entry for entry in entries if entry.seq != older_seq], older_seq + 1
