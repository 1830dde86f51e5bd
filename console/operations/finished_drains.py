"""Finds finished drains and their durations in the journal's entries. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from console.operations.recorded_drains import RecordedDrain
from eventing.events import MAINTENANCE_BEGUN, NODE_DRAINED
from eventing.journal.entries import Entry

DRAIN_EVENT_TYPES = (MAINTENANCE_BEGUN, NODE_DRAINED)
"""Types of the events that mark the start and the end of a drain."""


def find_finished_drains(entries: Iterable[Entry]) -> list[RecordedDrain]:
    """Return the drains for which the entries contain `maintenance.begun` and, later, `node.drained`.

    `entries` are in order of arrival. Only a maintenance's first event of each type counts, because `resync` may emit
    them again.
    """
    begun: dict[str, datetime] = {}
    drains: dict[str, RecordedDrain] = {}
    for entry in entries:
        uid = entry.maintenance
        if entry.event.get_type() == MAINTENANCE_BEGUN:
            begun.setdefault(uid, entry.arrived)
        elif entry.event.get_type() == NODE_DRAINED and uid in begun:
            drains.setdefault(uid, RecordedDrain(entry.node, (entry.arrived - begun[uid]).total_seconds()))
    return list(drains.values())
