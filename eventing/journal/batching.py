"""Bounds the memory that many events take: groups them by size, or removes their data and replies. No I/O.

For code that processes many events one after another; `listing` documents how much memory data takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from cloudevents.core.v1.event import CloudEvent

from eventing.journal.entries import Entry, maintenance_of

T = TypeVar("T")
ROOM = 4 * 1024 * 1024
"""Maximum characters in a portion: of events with their attempts, or of attempts."""
TOGETHER = 500
"""Maximum number of items in a portion, however small they are."""


def portions(sized: Iterable[tuple[T, int]], room: int = ROOM) -> Iterator[tuple[T, ...]]:
    """Group items of the given sizes, in their order; each portion fits into `room` or has only one item."""
    portion: list[T] = []
    left = room
    for one, size in sized:
        if portion and (size > left or len(portion) == TOGETHER):
            yield tuple(portion)
            portion, left = [], room
        portion.append(one)
        left -= size
    if portion:
        yield tuple(portion)


def bare(entry: Entry) -> Entry:
    """Return the entry without its event's data and without its attempts' replies.

    The data keeps only what identifies the object and the node that the event is about.
    """
    uid, name = maintenance_of(entry.event)
    named = {"name": entry.node} if entry.event.get_extension("kind") == "Node" else {"uid": uid, "name": name}
    about = {"metadata": named, "spec": {"nodeName": entry.node}}
    attempts = tuple(replace(attempt, replies=()) for attempt in entry.attempts)
    return replace(entry, event=CloudEvent(entry.event.get_attributes(), about), attempts=attempts)
