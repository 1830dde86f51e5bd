"""Many events in bounded memory: whole, in portions, or without their data and replies. Pure.

For whoever shows many, one after another; `listing` says what data takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from cloudevents.core.v1.event import CloudEvent

from eventing.journal.entries import Entry, maintenance_of

T = TypeVar("T")
ROOM = 4 * 1024 * 1024
"""Characters of what is in a portion: events with the attempts on them, or attempts."""
TOGETHER = 500
"""How many are in a portion at most, however small."""


def portions(sized: Iterable[tuple[T, int]], room: int = ROOM) -> Iterator[tuple[T, ...]]:
    """What is given with its size, in its order: as many together as there is room for, though at least one."""
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
    """The entry without the data of its event, but for what names the object and the node that it is about, and without
    the replies of its attempts."""
    uid, name = maintenance_of(entry.event)
    named = {"name": entry.node} if entry.event.get_extension("kind") == "Node" else {"uid": uid, "name": name}
    about = {"metadata": named, "spec": {"nodeName": entry.node}}
    attempts = tuple(replace(attempt, replies=()) for attempt in entry.attempts)
    return replace(entry, event=CloudEvent(entry.event.get_attributes(), about), attempts=attempts)
