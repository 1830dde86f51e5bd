"""The trace that an event belongs to: W3C Trace Context in the CloudEvents extension `traceparent`.

The extension identifies the attempt that emitted the event. A `traceparent` header belongs to one hop, and is not read
here. An event whose cause has no trace, such as a watch event or a tick, belongs to its maintenance's own trace. The id
of that trace is the maintenance's uid, so that users can find the trace by the uid.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cloudevents.core.base import BaseCloudEvent

from eventing.object_extensions import EXTENSION_OF_KIND

TRACEPARENT_EXTENSION = "traceparent"
TRACEPARENT_PATTERN = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
"""W3C Trace Context, 3.2.2: version, trace id, parent id and flags; neither id is all zeros.

A later version may append text. The text must be printable ASCII, because the whole value becomes a header.
"""
CURRENT_SPAN: ContextVar[tuple[str, str]] = ContextVar("current_span", default=("", ""))
"""The maintenance's uid, and the traceparent of the current attempt's span."""


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
