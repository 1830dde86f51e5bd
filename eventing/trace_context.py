"""The trace of an event: W3C Trace Context in the CloudEvents extension `traceparent`.

The extension identifies the attempt that emitted the event. A `traceparent` header belongs to one hop, and is not read
here. An event that no trace led to, such as one that follows a watch event or a tick, belongs to its maintenance's own
trace. The id of that trace is the maintenance's uid, so that users can find the trace by the uid.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cloudevents.core.base import BaseCloudEvent

from eventing.object_extensions import SUBJECTS

EXTENSION = "traceparent"
FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?")
"""W3C Trace Context, 3.2.2: version, trace id, parent id and flags; neither id is all zeros.

A later version may append text. It must be printable ASCII here, because the whole value becomes a header.
"""
CURRENT: ContextVar[tuple[str, str]] = ContextVar("maintenance's uid and span of the current attempt", default=("", ""))


def of(event: BaseCloudEvent) -> str:
    """Return the event's traceparent, "" if it has none or an invalid one."""
    value = str(event.get_extension(EXTENSION) or "")
    return value if FORM.fullmatch(value) else ""


def root(maintenance: str) -> str:
    """Return the traceparent of the first span in a maintenance's own trace; `maintenance` is the uid."""
    try:
        trace = uuid.UUID(maintenance).hex
    except ValueError:  # not a UUID, so the API server did not assign it: hash it to the same length
        trace = hashlib.sha256(maintenance.encode()).hexdigest()[:32]
    return f"00-{trace}-{hashlib.sha256(trace.encode()).hexdigest()[:16]}-01"


def emitted(cause: BaseCloudEvent | None, maintenance: str) -> str:
    """Return the traceparent for a new event about a maintenance: the current span, else the cause's, else the root.

    A span or cause that is about something else (a tick, a node, another maintenance) is not continued.
    """
    uid, span = CURRENT.get()
    if uid == maintenance and span:
        return span
    if cause is None or not (of(cause) and _about(cause, maintenance)):
        return root(maintenance)
    return of(cause)


def _about(cause: BaseCloudEvent, maintenance: str) -> bool:
    if cause.get_extension("kind") not in SUBJECTS:
        return any(cause.get_extension(word) == maintenance for word in SUBJECTS.values())
    data = cause.get_data()
    metadata = data.get("metadata") if isinstance(data, dict) else None
    return isinstance(metadata, dict) and metadata.get("uid") == maintenance


@contextmanager
def current(maintenance: str, span: str) -> Iterator[None]:
    """Make events about the maintenance continue this span within the block."""
    before = CURRENT.set((maintenance, span))
    try:
        yield
    finally:
        CURRENT.reset(before)
