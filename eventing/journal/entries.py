"""The journal's data types, independent of the database: entries, attempts, their keys, and queries. No I/O.

The module also builds and parses the event `attempts.made`, with which functions report their attempts to `record`, and
limits the memory that lists of entries take.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.dead_letters import DeadLetter, parse_dead_letter
from eventing.events import ATTEMPTS_MADE, FAILURE_TYPES, RESYNC_SOURCE, SOURCE_PREFIX, TICK
from eventing.extensions import EXTENSION_OF_KIND
from eventing.http_binding import BadEvent
from eventing.journal.origins import is_restored_without_node, select_origin_fields
from kube.text_limits import truncate

MAX_ATTEMPT_SECONDS, MAX_STATUS = 1e6, 999
"""Maximum duration in seconds and maximum HTTP status of an attempt; attempts with larger values are rejected."""
MIN_TIME, MAX_TIME = datetime(2, 1, 1, tzinfo=timezone.utc), datetime(9999, 1, 1, tzinfo=timezone.utc)
"""Bounds of valid times; times closer to the limits of `datetime` overflow in rounding or time zone conversion."""
MIN_WORK_SECONDS = 0.001
"""Minimum duration of an attempt that does something, because every request to the API server takes longer."""
MAX_KEY_BYTES = 512
"""Maximum size, in bytes, of each key of an event or attempt; a PostgreSQL index row has at most 2,700 bytes.

Other indexed columns are truncated to this number of characters.
"""
BATCH_CAPACITY_CHARACTERS = 4 * 1024 * 1024
"""Maximum total size, in characters, of the events in a batch (with their attempts), or of the attempts in a batch."""
MAX_BATCH_ITEMS = 500
"""Maximum number of items in a batch, regardless of their sizes."""
MAX_REASON_CHARACTERS = 1000
"""Maximum length, in characters, of a failure's reason in lists of events; the event itself contains it in full."""
SHORT_ID_CHARACTERS = 8
"""Number of characters at the start of a UUID that identify an event in practice."""
REDRIVE_PREFIX = "redrive "
"""Prefix of `Attempt.replay` for a redrive, in which no broker delivered the event."""
DISCARD_PREFIX = f"{REDRIVE_PREFIX}discard "
"""Prefix of `Attempt.replay` for a dead letter that a user discarded, so that it was not delivered."""
StructuredEvent = Mapping[str, Any]
"""An event in the CloudEvents JSON format (structured mode)."""
T = TypeVar("T")


@dataclass(frozen=True)
class Attempt:
    """One execution of one function for one event, as reported by the function.

    Attributes:
        source, event: Source and id of the event, which together identify it.
        function: Name of the function.
        at: Start time, with time zone.
        seconds: Duration.
        status: HTTP status of the response.
        replies: The complete events in the response.
        error: Text of an error response, "" on success.
        replay: Id of the replay that the attempt belongs to, "" for a broker's delivery.
    """

    source: str
    event: str
    function: str
    at: datetime
    seconds: float
    status: int
    replies: tuple[StructuredEvent, ...] = ()
    error: str = ""
    replay: str = ""

    @property
    def end(self) -> datetime:
        """Return the time of the response."""
        return self.at + timedelta(seconds=self.seconds)

    @property
    def failed(self) -> bool:
        """Return whether the response had an error status."""
        return self.status >= 400

    @property
    def did_nothing(self) -> bool:
        """Return whether the function had nothing to do: it emitted no event, and had no time for a request."""
        return not self.failed and not self.replies and self.seconds < MIN_WORK_SECONDS

    @property
    def reported_error(self) -> str:
        """Return the error that the function reported in a failure event, "" if it reported none.

        If a function cannot process an event and a retry would not help, it responds with a failure event instead of an
        error status.
        """
        data = (_as_mapping(reply.get("data")) for reply in self.replies if reply.get("type") in FAILURE_TYPES)
        return next((_build_failure_reason(fields) or "unknown error" for fields in data), "")

    @property
    def step_failed(self) -> bool:
        """Return whether the step failed: the function responded with an error status or with a failure event."""
        return self.failed or bool(self.reported_error)

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
        optional_fields = {"replies": list(self.replies), "error": self.error, "replay": self.replay}
        return fields | {name: value for name, value in optional_fields.items() if value}


def list_unresolved_failures(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the attempts with a failed step, unless the same function succeeded after the failed attempt had begun.

    The successful attempt may have begun earlier: while it runs, the function rejects further deliveries of the event.
    """
    attempts = list(attempts)
    successes = [attempt for attempt in attempts if not attempt.step_failed]
    return [
        attempt
        for attempt in attempts
        if attempt.step_failed
        and not any(success.function == attempt.function and success.end > attempt.at for success in successes)
    ]


@dataclass(frozen=True)
class Entry:
    """A recorded event with its number in order of arrival, its arrival time and its attempts."""

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
        """Return the uid of the NodeMaintenance or upgrade mutex object of the event, "" if there is none."""
        return get_object_identity(self.event)[0]

    @property
    def kind(self) -> str:
        """Return the kind of the object that the event is about, "" if there is none."""
        return get_object_kind(self.event)

    @property
    def node(self) -> str:
        """Return the name of the node that the event is about, "" if there is none."""
        return get_node_name(self.event)

    @property
    def failure_reason(self) -> str:
        """Return the failed step and the error if the event reports a failure, otherwise ""."""
        is_failure = self.event.get_type() in FAILURE_TYPES
        return _build_failure_reason(_as_mapping(self.event.get_data())) if is_failure else ""

    @property
    def is_node_deleted(self) -> bool:
        """Return whether the event reports that the maintenance has ended and its node no longer exists."""
        return is_restored_without_node(self.event)

    @property
    def is_idle_tick(self) -> bool:
        """Return whether the event is a tick of the PingSource or caused by one, and no function did anything for it.

        A tick occurs every 15 seconds, whether or not a drain is blocked.
        """
        attempts = [attempt for attempt in self.attempts if not attempt.replay]
        is_done = bool(attempts) and not any(item.replies or item.step_failed for item in attempts)
        return self.is_from_tick and is_done and self.dead_letter is None

    @property
    def is_from_tick(self) -> bool:
        """Return whether the event is a tick of the PingSource, or was emitted by `resync` because of one."""
        return self.event.get_type() == TICK or self.event.get_source() == RESYNC_SOURCE

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Return the reason why the event became a dead letter, None if it is not a dead letter."""
        return parse_dead_letter(self.event)


@dataclass(frozen=True)
class Query:
    """A selection of entries, which must meet all given conditions; the default selects all entries.

    Attributes:
        node: Name of the node.
        maintenance: Uid or name of the NodeMaintenance or upgrade mutex object.
        types: Select only events of these types.
        since, until: Select only events that arrived at or after `since` and before `until`; both have a time zone.
        failed: Select only dead letters that await a redrive, `maintenance.step_failed`, `run.halted`, and events with
            a failed attempt that was not followed by a successful response of the same function, nor by a redrive or
            discard of the dead letter.
        ids: Select only events with these ids.
        short_id: Select only events whose ids start with these `SHORT_ID_CHARACTERS` characters.
        seqs: Select only entries with these values of `seq`.
        dead_letters_only: Select only dead letters.
        awaiting_redrive: Exclude dead letters that their destination function accepted in a redrive, and dead letters
            that a user discarded.
        after_seq, before_seq: Select only entries with a greater or a smaller `seq`; 0 means no limit.
        limit: Maximum number of entries, 0 for no limit.
        keep_newest: Select the last `limit` entries instead of the first; the result is still in order of arrival.
    """

    node: str = ""
    maintenance: str = ""
    types: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    failed: bool = False
    ids: tuple[str, ...] = ()
    short_id: str = ""
    seqs: tuple[int, ...] = ()
    dead_letters_only: bool = False
    awaiting_redrive: bool = False
    after_seq: int = 0
    before_seq: int = 0
    limit: int = 0
    keep_newest: bool = False


def get_event_keys(event: BaseCloudEvent) -> dict[str, str]:
    """Return an event's source and id, and a dead letter's destination ("" for any other event).

    Raises `BadEvent` if one of these keys is too long for the index.
    """
    dead = parse_dead_letter(event)
    return _check_key_lengths(
        source=event.get_source(), id=event.get_id(), destination=dead.destination if dead else ""
    )


def get_attempt_keys(attempt: Attempt) -> dict[str, str]:
    """Return an attempt's function and replay, and its event's source and id.

    Raises `BadEvent` if one of these keys is too long for the index.
    """
    return _check_key_lengths(
        source=attempt.source, event=attempt.event, function=attempt.function, replay=attempt.replay
    )


def _check_key_lengths(**keys: str) -> dict[str, str]:
    for name, text in keys.items():
        if len(text.encode(errors="replace")) > MAX_KEY_BYTES:
            raise BadEvent(f"{name} is longer than {MAX_KEY_BYTES} bytes")
    return keys


def get_object_identity(event: BaseCloudEvent) -> tuple[str, str]:
    """Return the uid and name of the NodeMaintenance that an event is about; both are "" if there is none.

    For events about the upgrade mutex, these are the uid and name of the MutexRunConfig, MutexRule or MutexTarget. The
    function supports the API server's events and this project's own events.
    """
    if event.get_extension("kind") in EXTENSION_OF_KIND:
        metadata = _as_mapping(_as_mapping(event.get_data()).get("metadata"))
        return _to_text(metadata.get("uid")), _to_text(metadata.get("name"))
    uid = next(filter(None, map(event.get_extension, EXTENSION_OF_KIND.values())), None)
    return (_to_text(uid), _to_text(event.get_subject())) if uid else ("", "")


def get_object_kind(event: BaseCloudEvent) -> str:
    """Return the kind of the object that an event is about, as in `get_object_identity`; "" if there is none."""
    event_kind = event.get_extension("kind")
    if event_kind in EXTENSION_OF_KIND:
        return str(event_kind)
    return next((kind for kind, extension in EXTENSION_OF_KIND.items() if event.get_extension(extension)), "")


def get_node_name(event: BaseCloudEvent) -> str:
    """Return the name of the node that an event is about, "" if there is none.

    The name is in the data of the API server's events, and in an extension of this project's events.
    """
    data = _as_mapping(event.get_data())
    if event.get_extension("kind") == "NodeMaintenance":
        return _to_text(_as_mapping(data.get("spec")).get("nodeName"))
    if event.get_extension("kind") == "Node":
        return _to_text(_as_mapping(data.get("metadata")).get("name") or data.get("name"))
    return _to_text(event.get_extension("node"))


def split_into_batches(
    sized_items: Iterable[tuple[T, int]], capacity: int = BATCH_CAPACITY_CHARACTERS
) -> Iterator[tuple[T, ...]]:
    """Group items in their order; a batch takes at most `capacity`, or is a single larger item."""
    batch: list[T] = []
    free = capacity
    for item, size in sized_items:
        if batch and (size > free or len(batch) == MAX_BATCH_ITEMS):
            yield tuple(batch)
            batch, free = [], capacity
        batch.append(item)
        free -= size
    if batch:
        yield tuple(batch)


def strip_data(entry: Entry) -> Entry:
    """Return the entry without most of its event's data and its replies' data, for a list of many entries.

    The data keeps only what identifies the object and node that the event is about, who started and ended a
    maintenance, and how far its drain was. It also keeps whether the node no longer exists, and why a step failed. A
    reply keeps its id and type, and why a step failed.
    """
    uid, name = get_object_identity(entry.event)
    metadata = {"name": entry.node} if entry.event.get_extension("kind") == "Node" else {"uid": uid, "name": name}
    data: dict[str, Any] = {"metadata": metadata, "spec": {"nodeName": entry.node}}
    if entry.event.get_extension("kind") == "NodeMaintenance":
        metadata_fields, spec_fields, status = select_origin_fields(_as_mapping(entry.event.get_data()))
        data = {"metadata": {**metadata, **metadata_fields}, "spec": {**data["spec"], **spec_fields}, "status": status}
    if entry.event.get_type() in FAILURE_TYPES:
        data |= _select_failure_fields(entry.event.get_data())
    if entry.is_node_deleted:
        data["nodeDeleted"] = True
    attempts = tuple(replace(attempt, replies=tuple(map(_strip_reply, attempt.replies))) for attempt in entry.attempts)
    return replace(entry, event=CloudEvent(entry.event.get_attributes(), data), attempts=attempts)


def _strip_reply(reply: StructuredEvent) -> StructuredEvent:
    fields = {"id": reply["id"], "type": reply["type"]}
    return {**fields, "data": _select_failure_fields(reply.get("data"))} if reply["type"] in FAILURE_TYPES else fields


def _select_failure_fields(data: object) -> dict[str, str]:
    """Return the fields of a failure event's data that `_build_failure_reason` needs, each truncated."""
    fields = _as_mapping(data)
    return {name: truncate(_to_text(fields.get(name)), MAX_REASON_CHARACTERS) for name in ("step", "error")}


def _build_failure_reason(data: Mapping[str, Any]) -> str:
    """Return the step and the error in the data of a failure event, truncated; "" if the data contains no error."""
    fields = _select_failure_fields(data)
    return f"{fields['step']}: {fields['error']}" if fields["step"] and fields["error"] else fields["error"]


def build_attempts_event(attempts: Sequence[Attempt]) -> CloudEvent:
    """Build the event `attempts.made` that contains these attempts."""
    attributes = {
        "id": str(uuid.uuid4()),
        "source": SOURCE_PREFIX + "attempts",
        "type": ATTEMPTS_MADE,
        "time": datetime.now(timezone.utc),
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, {"attempts": [attempt.as_data() for attempt in attempts]})


def parse_attempts(event: BaseCloudEvent) -> list[Attempt]:
    """Parse the attempts in an `attempts.made` event. Raises `BadEvent`, which names an invalid field."""
    return parse_attempt_list(_as_mapping(event.get_data()).get("attempts"))


def parse_attempt_list(attempts: object) -> list[Attempt]:
    """Parse a list of attempts from event data. Raises `BadEvent`, which names an invalid field."""
    if not isinstance(attempts, list):
        raise BadEvent("data.attempts is missing: send a list of attempts")
    return [_parse_attempt(f"data.attempts[{index}]", attempt) for index, attempt in enumerate(attempts)]


def _parse_attempt(field_path: str, value: object) -> Attempt:
    data = _as_mapping(value)
    fields = {name: _require_field(field_path, data, name, str) for name in ("source", "event", "function")}
    seconds, status = (
        _require_field(field_path, data, "seconds", int, float),
        _require_field(field_path, data, "status", int),
    )
    if not 0 <= seconds <= MAX_ATTEMPT_SECONDS or not 0 <= status <= MAX_STATUS:
        raise BadEvent(
            f"{field_path}: seconds {seconds} or status {status} is out of range: "
            f"send 0 to {MAX_ATTEMPT_SECONDS:g} seconds and a status from 0 to {MAX_STATUS}"
        )
    return Attempt(
        **fields,
        at=parse_time(_require_field(field_path, data, "at", str)),
        seconds=float(seconds),
        status=status,
        replies=tuple(
            _parse_reply(field_path, reply)
            for reply in _require_field(field_path, {"replies": [], **data}, "replies", list)
        ),
        error=_require_field(field_path, {"error": "", **data}, "error", str),
        replay=_require_field(field_path, {"replay": "", **data}, "replay", str),
    )


def _parse_reply(field_path: str, value: object) -> StructuredEvent:
    """Return `value` if it is an event with an id and a type. Raises `BadEvent` otherwise."""
    reply = _as_mapping(value)
    for name in ("id", "type"):
        _require_field(f"{field_path}.replies", reply, name, str)
    return reply


def _require_field(field_path: str, data: Mapping[str, Any], name: str, *types: type) -> Any:
    if not isinstance(data.get(name), types):
        raise BadEvent(
            f"{field_path}.{name} is missing or is not of type {' or '.join(kind.__name__ for kind in types)}"
        )
    return data[name]


def parse_time(text: str) -> datetime:
    """Parse an ISO 8601 time; without a time zone, it is in UTC. Raises `BadEvent` for any other text."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        zoned = time.astimezone(timezone.utc) if time.tzinfo else time.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise BadEvent(f"{text!r} is not an ISO 8601 time") from None
    if not MIN_TIME <= zoned <= MAX_TIME:
        raise BadEvent(f"{text!r} is out of range: send a time from {MIN_TIME.date()} to {MAX_TIME.date()}")
    return zoned


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _to_text(value: object) -> str:
    return "" if value is None else str(value)
