"""The filter of the list of events, as the page's form and its URL contain it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from werkzeug.exceptions import BadRequest

from console.operations.descriptions import parse_time_or_age
from eventing.journal.entries import Query

PAGE_SIZE = 200
"""Maximum number of events on one page."""
TEXT_FIELDS = ("node", "maintenance", "type", "since")
BY_TIME = "time"
"""Value of `view` for one list in order of arrival; by default, the events are grouped by object."""


@dataclass(frozen=True)
class EventFilter:
    """The events to list: all fields are optional.

    Attributes:
        maintenance: Name or uid of the maintenance, or of an object of the upgrade mutex.
        since: A time or an age, as `parse_time_or_age` accepts it.
        view: `BY_TIME`, or "" to group the events by object.
    """

    node: str = ""
    maintenance: str = ""
    type: str = ""
    since: str = ""
    failed: bool = False
    view: str = ""

    @classmethod
    def from_query(cls, fields: Mapping[str, str]) -> EventFilter:
        """Parse the fields of a URL's query; unknown views are ignored."""
        texts = {name: fields.get(name, "").strip() for name in TEXT_FIELDS}
        view = BY_TIME if fields.get("view") == BY_TIME else ""
        return cls(**texts, failed=bool(fields.get("failed")), view=view)

    def as_query(self, **changes: str) -> dict[str, str]:
        """Return the fields for the query of a URL, with these changes and without empty fields."""
        fields = {**vars(self), "failed": "yes" if self.failed else "", **changes}
        return {name: value for name, value in fields.items() if value}

    def build_query(self) -> Query:
        """Build the query for the newest matching events. Raises `BadRequest` if `since` is invalid."""
        return Query(
            node=self.node,
            maintenance=self.maintenance,
            types=(self.type,) if self.type else (),
            since=self._parse_since(),
            failed=self.failed,
            limit=PAGE_SIZE,
            keep_newest=True,
        )

    def _parse_since(self) -> datetime | None:
        try:
            return parse_time_or_age(self.since) if self.since else None
        except ValueError as error:
            raise BadRequest(f"since: {error}") from None
