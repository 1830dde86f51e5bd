"""The extensions that this project's events carry: the object that an event is about, its trace, and marks of a replay.

**Trace**: W3C Trace Context in the extension `traceparent`, which identifies the attempt that emitted the event. A
`traceparent` header belongs to one hop, and is not read here. An event whose cause has no trace, such as a watch event
or a tick, belongs to its maintenance's own trace. The id of that trace is the maintenance's uid, so that users can find
the trace by the uid.

**Replay**: `replay`, which is the replay's id, and `dryrun`. Functions process a marked event like any other, but send
the replies to the client that replays it, never to a broker. With `dryrun`, the API server persists none of the writes.
Replies inherit the extensions. A reply to a replay therefore does not continue the chain, even if a client posts the
reply to a broker.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.http_binding import BadEvent

EXTENSION_OF_KIND = {
    "NodeMaintenance": "maintenance",
    "MutexRunConfig": "run",
    "MutexRule": "rule",
    "MutexTarget": "target",
    "Round": "round",
}
"""Kind of the object that an event is about → its name in event data and among the extensions."""
TRACEPARENT_EXTENSION = "traceparent"
TRACEPARENT_PATTERN = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
"""W3C Trace Context, 3.2.2: version, trace id, parent id and flags; neither id is all zeros.

A later version may append text. The text must be printable ASCII, because the whole value becomes a header.
"""
CURRENT_SPAN: ContextVar[tuple[str, str]] = ContextVar("current_span", default=("", ""))
"""The maintenance's uid, and the traceparent of the current attempt's span."""
REPLAY_EXTENSION, DRY_RUN_EXTENSION = "replay", "dryrun"
DRY_RUN_ALL = "All"
"""The only valid value of `dryrun`, as in the API server's parameter `dryRun`."""


def get_traceparent(event: BaseCloudEvent) -> str:
    """Return the event's traceparent, "" if it has none or an invalid one."""
    value = str(event.get_extension(TRACEPARENT_EXTENSION) or "")
    return value if TRACEPARENT_PATTERN.fullmatch(value) else ""


def build_root_traceparent(object_uid: str) -> str:
    """Return the traceparent of the first span in the trace of the maintenance with the uid `object_uid`."""
    try:
        trace = uuid.UUID(object_uid).hex
    except ValueError:  # The API server assigns only UUIDs: hash any other uid to the same length.
        trace = hashlib.sha256(object_uid.encode()).hexdigest()[:32]
    return f"00-{trace}-{hashlib.sha256(trace.encode()).hexdigest()[:16]}-01"


def select_traceparent(cause: BaseCloudEvent | None, object_uid: str) -> str:
    """Return the traceparent for a new event about a maintenance: the current span, else the cause's, else the root.

    A span or cause that is not about this maintenance (a tick, a node, a different maintenance) is not continued.
    """
    uid, span = CURRENT_SPAN.get()
    if uid == object_uid and span:
        return span
    if cause is None or not (get_traceparent(cause) and _is_about_object(cause, object_uid)):
        return build_root_traceparent(object_uid)
    return get_traceparent(cause)


def _is_about_object(cause: BaseCloudEvent, object_uid: str) -> bool:
    if cause.get_extension("kind") not in EXTENSION_OF_KIND:
        return any(cause.get_extension(extension) == object_uid for extension in EXTENSION_OF_KIND.values())
    data = cause.get_data()
    metadata = data.get("metadata") if isinstance(data, dict) else None
    return isinstance(metadata, dict) and metadata.get("uid") == object_uid


@contextmanager
def use_span(object_uid: str, span: str) -> Iterator[None]:
    """Make events about the maintenance that are built within the block use `span` as their traceparent."""
    token = CURRENT_SPAN.set((object_uid, span))
    try:
        yield
    finally:
        CURRENT_SPAN.reset(token)


def get_replay_extensions(event: BaseCloudEvent) -> dict[str, str]:
    """Return the extensions that mark the event as a replay, {} if the event is not a replay."""
    marks = {name: event.get_extension(name) for name in (REPLAY_EXTENSION, DRY_RUN_EXTENSION)}
    return {name: str(value) for name, value in marks.items() if value is not None}


def is_replay(event: BaseCloudEvent) -> bool:
    """Return whether the event is a replay, posted only to see the replies; every dry run is a replay."""
    return bool(get_replay_extensions(event))


def is_dry_run(event: BaseCloudEvent) -> bool:
    """Return whether the event's writes must not be persisted. Raises `BadEvent` for an invalid value."""
    value = get_replay_extensions(event).get(DRY_RUN_EXTENSION)
    if value not in (None, DRY_RUN_ALL):
        raise BadEvent(f"extension {DRY_RUN_EXTENSION} is {value!r}: send {DRY_RUN_ALL!r}, or omit it")
    return value == DRY_RUN_ALL


def add_replay_extensions(event: BaseCloudEvent, replay_id: str, *, dry_run: bool) -> BaseCloudEvent:
    """Return the event with the extensions of the replay `replay_id`; the event's id stays unchanged."""
    marks = {REPLAY_EXTENSION: replay_id, **({DRY_RUN_EXTENSION: DRY_RUN_ALL} if dry_run else {})}
    return CloudEvent({**event.get_attributes(), **marks}, event.get_data())
