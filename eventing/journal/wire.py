"""The JSON format of queries and entries, in which the console sends a journal to `kubectl maintenance`. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import quote

from cloudevents.core.formats.json import JSONFormat

from eventing.journal.entries import Entry, Query, parse_attempt_list, parse_time, split_into_batches

READER = "node-maintenance-journal"
"""Name of the ServiceAccount whose tokens allow reading the journal, and of the Service that serves the journal."""
AUDIENCE = "node-maintenance-journal"
"""Audience of the ServiceAccount's tokens, which no other server accepts."""
TOKEN_HEADER = "X-Journal-Token"  # noqa: S105 - the name of a header, not a token
"""Header with the token, because the API server's proxy removes the header Authorization."""
NUMBERS_PATH, ENTRIES_PATH = "/v1/numbers", "/v1/entries"
"""URL paths of the selected entries' numbers, and of the entries themselves."""
MAX_NUMBERS = 10_000
"""Maximum number of entries whose numbers one response contains."""


class JournalReader(Protocol):
    """The methods of a journal that commands need for reading; see `store.Journal`."""

    def select(self, query: Query | None = None) -> list[Entry]:
        """Return the selected entries with their attempts, in order of arrival; by default, all entries."""

    def iter_entries(self, query: Query) -> Iterator[Entry]:
        """Yield the selected entries one by one, in limited memory."""

    def list_event_numbers(self, query: Query) -> tuple[int, ...]:
        """Return the numbers of the selected entries in order of arrival."""


def encode_query(query: Query) -> str:
    """Encode the fields of a query that differ from their defaults as JSON."""
    default = Query()
    values = {name: value for name, value in vars(query).items() if value != getattr(default, name)}
    return json.dumps(values, default=datetime.isoformat, separators=(",", ":"))


def decode_query(text: str) -> Query:
    """Decode the JSON of `encode_query`. Raises `ValueError`, which names an invalid or unknown field.

    An unknown field is an error, because ignoring that filter would return too many entries.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError is raised for deeply nested JSON
        raise ValueError("query is not JSON") from None
    if not isinstance(values, dict):
        raise ValueError("query is not a JSON object")
    if unknown := sorted(values.keys() - DECODERS.keys()):
        raise ValueError(
            f"this version does not know the filter {', '.join(unknown)}: install the version of the command"
        )
    return Query(**{name: DECODERS[name](name, value) for name, value in values.items()})


def encode_entry(entry: Entry) -> dict[str, Any]:
    """Encode the entry as JSON data."""
    event = json.loads(JSONFormat().write(entry.event))
    attempts = [attempt.as_data() for attempt in entry.attempts]
    return {"seq": entry.seq, "arrived": entry.arrived.isoformat(), "event": event, "attempts": attempts}


def decode_entry(data: Mapping[str, Any]) -> Entry:
    """Decode the data of `encode_entry`. Raises `BadEvent` for invalid times and attempts."""
    event = JSONFormat().read(None, json.dumps(data["event"]))
    return Entry(data["seq"], parse_time(data["arrived"]), event, tuple(parse_attempt_list(data["attempts"])))


def _require_type(name: str, value: object, expected_type: type) -> Any:
    if type(value) is not expected_type:  # not isinstance, because a bool is an int
        raise ValueError(f"{name} is not of type {expected_type.__name__}")
    return value


def _require_nonnegative_integer(name: str, value: object) -> int:
    number: int = _require_type(name, value, int)
    if number < 0:
        raise ValueError(f"{name} is negative")
    return number


def _decode_list(name: str, value: object, item_type: type) -> tuple[Any, ...]:
    return tuple(_require_type(name, item, item_type) for item in _require_type(name, value, list))


def _build_decoder(default: object) -> Callable[[str, object], Any]:
    """Return the function that decodes a query field with this default value."""
    if default is None:
        return lambda name, value: parse_time(_require_type(name, value, str))
    if isinstance(default, tuple):
        return lambda name, value: _decode_list(name, value, str)
    if type(default) is int:
        return _require_nonnegative_integer
    return lambda name, value: _require_type(name, value, type(default))


DECODERS: Mapping[str, Callable[[str, object], Any]] = {
    **{field.name: _build_decoder(field.default) for field in fields(Query)},
    "seqs": lambda name, value: _decode_list(name, value, int),
}
"""The function that decodes each query field; it takes the field's name and the value."""


def split_by_length(items: Sequence[Any], capacity: int) -> Iterator[tuple[Any, ...]]:
    """Group items so that each group's JSON takes at most `capacity` characters in a URL, or is a single item."""
    separator_characters = len(quote(","))
    sized_items = ((item, len(quote(json.dumps(item), safe="")) + separator_characters) for item in items)
    return split_into_batches(sized_items, capacity)
