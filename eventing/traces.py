"""Which trace an event belongs to: W3C Trace Context in the extension `traceparent`, as CloudEvents lays it down.

The extension says which run brought the event about; a header `traceparent` belongs to one hop, and is not read here.
An event that speaks of a maintenance and was brought about by nothing in a trace (a watch, a tick) belongs to the
maintenance's own trace, whose id is the maintenance's uid: it can be looked up by that.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cloudevents.core.base import BaseCloudEvent

EXTENSION = "traceparent"
FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
"""W3C Trace Context, 3.2.2: version, trace id, parent id, flags; neither id is all zeros."""
RUNNING: ContextVar[tuple[str, str]] = ContextVar("maintenance's uid and span of the run under way", default=("", ""))


def of(event: BaseCloudEvent) -> str:
    """The event's traceparent, "" when it has none or one that means nothing."""
    said = str(event.get_extension(EXTENSION) or "")
    return said if FORM.fullmatch(said) else ""


def own(maintenance: str) -> str:
    """The traceparent of the first span of a maintenance's own trace, by the uid."""
    try:
        trace = uuid.UUID(maintenance).hex
    except ValueError:  # the API server gives UUIDs; another's uid is digested to the same length
        trace = hashlib.sha256(maintenance.encode()).hexdigest()[:32]
    return f"00-{trace}-{hashlib.sha256(trace.encode()).hexdigest()[:16]}-01"


def following(cause: BaseCloudEvent | None, maintenance: str) -> str:
    """The traceparent of an event about a maintenance: of the run under way, else of its cause, else the own one.

    A run or cause that is about something else (a tick, a node, another maintenance) leads into no maintenance's trace.
    """
    uid, span = RUNNING.get()
    if uid == maintenance and span:
        return span
    if cause is None or not (of(cause) and _about(cause, maintenance)):
        return own(maintenance)
    return of(cause)


def _about(cause: BaseCloudEvent, maintenance: str) -> bool:
    if cause.get_extension("kind") != "NodeMaintenance":
        return bool(cause.get_extension("maintenance") == maintenance)
    data = cause.get_data()
    metadata = data.get("metadata") if isinstance(data, dict) else None
    return isinstance(metadata, dict) and metadata.get("uid") == maintenance


@contextmanager
def running(maintenance: str, span: str) -> Iterator[None]:
    """What is said of the maintenance in this block is brought about by the span."""
    before = RUNNING.set((maintenance, span))
    try:
        yield
    finally:
        RUNNING.reset(before)
