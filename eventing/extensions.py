"""The extensions that relate this project's events to an object, to a trace and to a replay.

**Trace**: The extension `traceparent` contains a W3C Trace Context that identifies the attempt which emitted the event.
A `traceparent` header applies to a single hop and is not read. An event whose cause has no trace, such as a watch event
or a tick of the PingSource, belongs to its maintenance's own trace. That trace's id is the maintenance's uid, so that
users can find the trace.

**Replay**: `replay`, which is the replay's id, and `dryrun`. Functions process such an event like any other, but send
the replies to the client that replays it, never to a broker. With `dryrun`, the API server stores none of the writes.
Replies inherit the extensions. Therefore, even if a client posts a reply to a broker, no function continues the
maintenance because of it.
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
"""The name of the extension, which is also the key in event data, by the kind of the object that an event is about."""
TRACEPARENT_EXTENSION = "traceparent"
TRACEPARENT_PATTERN = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
"""Matches a W3C Trace Context (section 3.2.2): version, trace id, parent id and flags; neither id is all zeros.

A later version may append text. That text must be printable ASCII, because the whole value becomes a header.
"""
CURRENT_SPAN: ContextVar[tuple[str, str]] = ContextVar("current_span", default=("", ""))
"""The uid of the maintenance that the current attempt is about, and the traceparent of the attempt's span."""
REPLAY_EXTENSION, DRY_RUN_EXTENSION = "replay", "dryrun"
DRY_RUN_ALL = "All"
"""The only valid value of `dryrun`, as of the API server's query parameter `dryRun`."""


def get_traceparent(event: BaseCloudEvent) -> str:
    """Return the event's traceparent, "" if it is missing or invalid."""
    value = str(event.get_extension(TRACEPARENT_EXTENSION) or "")
    return value if TRACEPARENT_PATTERN.fullmatch(value) else ""


def build_root_traceparent(object_uid: str) -> str:
    """Return the traceparent of the first span in a maintenance's trace; `object_uid` is the maintenance's uid."""
    try:
        trace = uuid.UUID(object_uid).hex
    except ValueError:  # The API server assigns only UUIDs: hash any other uid to the same length.
        trace = hashlib.sha256(object_uid.encode()).hexdigest()[:32]
    return f"00-{trace}-{hashlib.sha256(trace.encode()).hexdigest()[:16]}-01"


def select_traceparent(cause: BaseCloudEvent | None, object_uid: str) -> str:
    """Return the traceparent of a new event about a maintenance: of the current span, else of the cause, else the root.

    A span or cause that is not about this maintenance is not continued, such as a tick or an event about a node.
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
    """Use `span` as the traceparent of all events about the maintenance that are built within the block."""
    token = CURRENT_SPAN.set((object_uid, span))
    try:
        yield
    finally:
        CURRENT_SPAN.reset(token)


def get_replay_extensions(event: BaseCloudEvent) -> dict[str, str]:
    """Return the event's replay extensions, {} if the event is not a replay."""
    marks = {name: event.get_extension(name) for name in (REPLAY_EXTENSION, DRY_RUN_EXTENSION)}
    return {name: str(value) for name, value in marks.items() if value is not None}


def is_replay(event: BaseCloudEvent) -> bool:
    """Return whether the event is a replay, posted only to receive the replies; every dry run is a replay."""
    return bool(get_replay_extensions(event))


def is_dry_run(event: BaseCloudEvent) -> bool:
    """Return whether the event requests a dry run. Raises `BadEvent` if the extension has an invalid value."""
    value = get_replay_extensions(event).get(DRY_RUN_EXTENSION)
    if value not in (None, DRY_RUN_ALL):
        raise BadEvent(f"extension {DRY_RUN_EXTENSION} is {value!r}: send {DRY_RUN_ALL!r}, or omit it")
    return value == DRY_RUN_ALL


def add_replay_extensions(event: BaseCloudEvent, replay_id: str, *, dry_run: bool) -> BaseCloudEvent:
    """Return the event with the replay extensions for `replay_id`; the event's id stays the same."""
    marks = {REPLAY_EXTENSION: replay_id, **({DRY_RUN_EXTENSION: DRY_RUN_ALL} if dry_run else {})}
    return CloudEvent({**event.get_attributes(), **marks}, event.get_data())
