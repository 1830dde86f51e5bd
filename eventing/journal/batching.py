"""Bounds the memory that many events take: groups them by size, or removes their data and replies. No I/O.

Used by code that processes many events one after another; `listing` documents how much memory data takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from cloudevents.core.v1.event import CloudEvent

from eventing.journal.entries import Entry, get_object_identity

T = TypeVar("T")
BATCH_CAPACITY_CHARACTERS = 4 * 1024 * 1024
"""Maximum total size of the events (with their attempts) or the attempts in a batch, in characters."""
MAX_BATCH_ITEMS = 500
"""Maximum number of items in a batch, however small they are."""


def split_into_batches(
    sized_items: Iterable[tuple[T, int]], capacity: int = BATCH_CAPACITY_CHARACTERS
) -> Iterator[tuple[T, ...]]:
    """Group items of the given sizes, in their order; each batch fits into `capacity` or has only one item."""
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
    """Return the entry without its event's data and without its attempts' replies.

    The data keeps only what identifies the object and the node that the event is about.
    """
    uid, name = get_object_identity(entry.event)
    metadata = {"name": entry.node} if entry.event.get_extension("kind") == "Node" else {"uid": uid, "name": name}
    data = {"metadata": metadata, "spec": {"nodeName": entry.node}}
    attempts = tuple(replace(attempt, replies=()) for attempt in entry.attempts)
    return replace(entry, event=CloudEvent(entry.event.get_attributes(), data), attempts=attempts)
