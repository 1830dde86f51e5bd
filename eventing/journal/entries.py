"""The journal's data types: entries, attempts and queries, free of any database. Pure.

Also the event `attempts.made`, which carries attempts from the functions to `record` and in an export.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.deadletters import DeadLetter, dead_letter_of
from eventing.events import ATTEMPTS_MADE, SOURCE
from eventing.subjects import SUBJECTS
from eventing.wire import BadEvent

LONGEST, HIGHEST_STATUS = 1e6, 999
"""Seconds of an attempt, and its status; what is more has no place in a database's column."""
EARLIEST, LATEST = datetime(2, 1, 1, tzinfo=timezone.utc), datetime(9999, 1, 1, tzinfo=timezone.utc)
"""What is nearer to the ends of `datetime` is beyond them once it is rounded, or shown in another zone."""
REDRIVE = "redrive "
"""Begins `Attempt.replay` of what was redriven: it is no broker's attempt."""
Structured = Mapping[str, Any]
"""An event in the JSON format, structured mode."""


@dataclass(frozen=True)
class Attempt:
    """One execution of one function on one event, as the function itself knows it.

    Attributes:
        source, event: source and id of the event; together they name it.
        function: its name.
        at: when it began, with time zone.
        seconds: how long it took.
        status: the HTTP status of its response.
        replies: the events it replied with, whole.
        error: the text of an error response, "" for a success.
        replay: id of the replay it belongs to, "" for a real one.
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
        """Whether its response was an error."""
        return self.status >= 400

    def as_data(self) -> dict[str, Any]:
        """The form that travels; what is empty stays away."""
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
    """One recorded event: its number in the order of arrival, when it arrived, itself, and the attempts on it."""

    seq: int
    arrived: datetime
    event: BaseCloudEvent
    attempts: tuple[Attempt, ...] = ()

    @property
    def cause(self) -> str:
        """Id of the event that this one answers, "" for none."""
        return str(self.event.get_extension("cause") or "")

    @property
    def maintenance(self) -> str:
        """Uid of the NodeMaintenance that it is about, or of the object of the upgrade mutex, "" for none."""
        return maintenance_of(self.event)[0]

    @property
    def kind(self) -> str:
        """Kind of what it is about, "" for nothing."""
        return kind_of(self.event)

    @property
    def node(self) -> str:
        """Name of the node that it is about, "" for none."""
        return node_of(self.event)

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Why it was dead-lettered, None for what was delivered."""
        return dead_letter_of(self.event)


@dataclass(frozen=True)
class Query:
    """What to select; all that is given must hold, the default is everything.

    Attributes:
        node: name of the node.
        maintenance: uid or name of the NodeMaintenance, or of the object of the upgrade mutex.
        maintained: events that are about some such object.
        types: one of these types.
        since, until: arrived at or after, and before; with time zone.
        failed: events that a function answered with an error, `maintenance.failed`, `run.stopped`, and dead letters.
        ids: one of these ids.
        numbers: one of these, as `seq`.
        dead: dead letters only.
        open: without dead letters that the function of their address took when they were redriven.
        after: entries with a greater `seq`.
        limit: at most so many, 0 for all.
        newest: of more than `limit` take the last ones; the order is that of arrival either way.
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
    """Uid and name of the NodeMaintenance that an event is about, ours or the API server's; "" for other events.

    Of the upgrade mutex they are those of the MutexRunConfig, MutexRule or MutexTarget, which are kept alike.
    """
    if event.get_extension("kind") in SUBJECTS:
        metadata = _mapping(_mapping(event.get_data()).get("metadata"))
        return _text(metadata.get("uid")), _text(metadata.get("name"))
    uid = next(filter(None, map(event.get_extension, SUBJECTS.values())), None)
    return (_text(uid), _text(event.get_subject())) if uid else ("", "")


def kind_of(event: BaseCloudEvent) -> str:
    """Kind of the object that `maintenance_of` names, "" for none."""
    told = event.get_extension("kind")
    if told in SUBJECTS:
        return str(told)
    return next((kind for kind, word in SUBJECTS.items() if event.get_extension(word)), "")


def node_of(event: BaseCloudEvent) -> str:
    """Name of the node that an event is about: an extension of ours, in the data of the API server's."""
    data = _mapping(event.get_data())
    if event.get_extension("kind") == "NodeMaintenance":
        return _text(_mapping(data.get("spec")).get("nodeName"))
    if event.get_extension("kind") == "Node":
        return _text(_mapping(data.get("metadata")).get("name") or data.get("name"))
    return _text(event.get_extension("node"))


def attempts_event(attempts: Sequence[Attempt]) -> CloudEvent:
    """The event `attempts.made` that carries these attempts."""
    attributes = {
        "id": str(uuid.uuid4()),
        "source": SOURCE + "attempts",
        "type": ATTEMPTS_MADE,
        "time": datetime.now(timezone.utc),
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, {"attempts": [attempt.as_data() for attempt in attempts]})


def attempts_in(event: BaseCloudEvent) -> list[Attempt]:
    """The attempts that an `attempts.made` carries. Raises `BadEvent` naming the field that is wrong."""
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
    """An event as it was answered: whoever shows it needs what it is."""
    reply = _mapping(value)
    for name in ("id", "type"):
        _field(f"{where}.replies", reply, name, str)
    return reply


def _field(where: str, data: Mapping[str, Any], name: str, *kinds: type) -> Any:
    if not isinstance(data.get(name), kinds):
        raise BadEvent(f"{where}.{name} is missing or no {' or '.join(kind.__name__ for kind in kinds)}")
    return data[name]


def moment(text: str) -> datetime:
    """The time in ISO 8601, in UTC where the text names no zone. Raises `BadEvent`."""
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
