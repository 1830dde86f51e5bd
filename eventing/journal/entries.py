"""The journal's data types: entries, attempts and queries, independent of the database. No I/O.

Also builds and parses the event `attempts.made`, which carries attempts from the functions to `record` and in exports.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.dead_letters import DeadLetter, dead_letter_of
from eventing.events import ATTEMPTS_MADE, SOURCE
from eventing.object_extensions import SUBJECTS
from eventing.http_binding import BadEvent

LONGEST, HIGHEST_STATUS = 1e6, 999
"""Maximum seconds and maximum status of an attempt; greater values are rejected."""
EARLIEST, LATEST = datetime(2, 1, 1, tzinfo=timezone.utc), datetime(9999, 1, 1, tzinfo=timezone.utc)
"""Bounds of valid times; times closer to the limits of `datetime` overflow when rounded or converted to a zone."""
REDRIVE = "redrive "
"""Prefix of `Attempt.replay` for a redrive, which is not a broker's delivery."""
Structured = Mapping[str, Any]
"""An event in the CloudEvents JSON format (structured mode)."""


@dataclass(frozen=True)
class Attempt:
    """One execution of one function for one event, as reported by the function.

    Attributes:
        source, event: Source and id of the event; together they identify it.
        function: Name of the function.
        at: Start time, with time zone.
        seconds: Duration.
        status: The HTTP status of the response.
        replies: The events in the response, complete.
        error: The text of an error response, "" on success.
        replay: Id of the replay that the attempt belongs to, "" for a regular delivery.
    """

    source: str
    event: str
    function: str
    at: datetime
    seconds: float
    status: int
    replies: tuple[Structured, ...] = ()
    error: str = ""
    replay: str = ""

    @property
    def failed(self) -> bool:
        """Return whether the response was an error."""
        return self.status >= 400

    def as_data(self) -> dict[str, Any]:
        """Return the attempt as event data, without empty optional fields."""
        fields = {
            "source": self.source,
            "event": self.event,
            "function": self.function,
            "at": self.at.isoformat(),
            "seconds": self.seconds,
            "status": self.status,
        }
        more = {"replies": list(self.replies), "error": self.error, "replay": self.replay}
        return fields | {name: value for name, value in more.items() if value}


@dataclass(frozen=True)
class Entry:
    """One recorded event: its number in order of arrival, its arrival time, the event, and the attempts on it."""

    seq: int
    arrived: datetime
    event: BaseCloudEvent
    attempts: tuple[Attempt, ...] = ()

    @property
    def cause(self) -> str:
        """Return the id of the event that triggered this one, "" if there is none."""
        return str(self.event.get_extension("cause") or "")

    @property
    def maintenance(self) -> str:
        """Return the uid of the NodeMaintenance or upgrade mutex object that the event is about, "" if none."""
        return maintenance_of(self.event)[0]

    @property
    def kind(self) -> str:
        """Return the kind of the object that the event is about, "" if there is none."""
        return kind_of(self.event)

    @property
    def node(self) -> str:
        """Return the name of the node that the event is about, "" if there is none."""
        return node_of(self.event)

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Return why the event was dead-lettered, or None if it is not a dead letter."""
        return dead_letter_of(self.event)


@dataclass(frozen=True)
class Query:
    """Selection of entries; an entry must meet all given conditions, and the default selects everything.

    Attributes:
        node: Name of the node.
        maintenance: Uid or name of the NodeMaintenance or upgrade mutex object.
        maintained: Only events about such an object.
        types: Only events of these types.
        since, until: Arrival at or after `since` and before `until`; with time zone.
        failed: Only dead letters, `maintenance.failed`, `run.stopped`, and events with a failed attempt.
        ids: Only events with these ids.
        numbers: Only entries with these values of `seq`.
        dead: Only dead letters.
        open: Without dead letters that their destination function accepted when they were redriven.
        after: Only entries with a greater `seq`.
        limit: Maximum number of entries, 0 for all.
        newest: Select the last `limit` entries instead of the first; the result is in order of arrival either way.
    """

    node: str = ""
    maintenance: str = ""
    types: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    failed: bool = False
    ids: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    dead: bool = False
    open: bool = False
    after: int = 0
    limit: int = 0
    newest: bool = False
    maintained: bool = False


def maintenance_of(event: BaseCloudEvent) -> tuple[str, str]:
    """Return uid and name of the NodeMaintenance that an event is about, or two empty strings.

    For events about the upgrade mutex, these are uid and name of the MutexRunConfig, MutexRule or MutexTarget. Works
    for this project's events and for the API server's.
    """
    if event.get_extension("kind") in SUBJECTS:
        metadata = _mapping(_mapping(event.get_data()).get("metadata"))
        return _text(metadata.get("uid")), _text(metadata.get("name"))
    uid = next(filter(None, map(event.get_extension, SUBJECTS.values())), None)
    return (_text(uid), _text(event.get_subject())) if uid else ("", "")


def kind_of(event: BaseCloudEvent) -> str:
    """Return the kind of the object that `maintenance_of` identifies, "" if there is none."""
    told = event.get_extension("kind")
    if told in SUBJECTS:
        return str(told)
    return next((kind for kind, word in SUBJECTS.items() if event.get_extension(word)), "")


def node_of(event: BaseCloudEvent) -> str:
    """Return the name of the node that an event is about, "" if there is none.

    The API server's events have it in their data, this project's events as an extension.
    """
    data = _mapping(event.get_data())
    if event.get_extension("kind") == "NodeMaintenance":
        return _text(_mapping(data.get("spec")).get("nodeName"))
    if event.get_extension("kind") == "Node":
        return _text(_mapping(data.get("metadata")).get("name") or data.get("name"))
    return _text(event.get_extension("node"))


def attempts_event(attempts: Sequence[Attempt]) -> CloudEvent:
    """Build the event `attempts.made` that carries these attempts."""
    attributes = {
        "id": str(uuid.uuid4()),
        "source": SOURCE + "attempts",
        "type": ATTEMPTS_MADE,
        "time": datetime.now(timezone.utc),
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, {"attempts": [attempt.as_data() for attempt in attempts]})


def attempts_in(event: BaseCloudEvent) -> list[Attempt]:
    """Return the attempts in an `attempts.made` event. Raises `BadEvent` with the name of an invalid field."""
    attempts = _mapping(event.get_data()).get("attempts")
    if not isinstance(attempts, list):
        raise BadEvent("data.attempts is missing: a list of attempts")
    return [_attempt(f"data.attempts[{number}]", one) for number, one in enumerate(attempts)]


def _attempt(where: str, value: object) -> Attempt:
    data = _mapping(value)
    fields = {name: _field(where, data, name, str) for name in ("source", "event", "function")}
    seconds, status = _field(where, data, "seconds", int, float), _field(where, data, "status", int)
    if not 0 <= seconds <= LONGEST or not 0 <= status <= HIGHEST_STATUS:
        raise BadEvent(f"{where}: {seconds} seconds or status {status} can be none of an attempt's")
    return Attempt(
        **fields,
        at=moment(_field(where, data, "at", str)),
        seconds=float(seconds),
        status=status,
        replies=tuple(_reply(where, reply) for reply in _field(where, {"replies": [], **data}, "replies", list)),
        error=_field(where, {"error": "", **data}, "error", str),
        replay=_field(where, {"replay": "", **data}, "replay", str),
    )


def _reply(where: str, value: object) -> Structured:
    """Return a reply if it is an event with id and type. Raises `BadEvent` otherwise."""
    reply = _mapping(value)
    for name in ("id", "type"):
        _field(f"{where}.replies", reply, name, str)
    return reply


def _field(where: str, data: Mapping[str, Any], name: str, *kinds: type) -> Any:
    if not isinstance(data.get(name), kinds):
        raise BadEvent(f"{where}.{name} is missing or no {' or '.join(kind.__name__ for kind in kinds)}")
    return data[name]


def moment(text: str) -> datetime:
    """Parse an ISO 8601 time, which is in UTC if it names no zone. Raises `BadEvent`."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        zoned = time.astimezone(timezone.utc) if time.tzinfo else time.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise BadEvent(f"{text!r} is no ISO 8601 time") from None
    if not EARLIEST <= zoned <= LATEST:
        raise BadEvent(f"{text!r} is no time that can be kept")
    return zoned


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return "" if value is None else str(value)
