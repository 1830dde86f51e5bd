"""Decides which maintenances are stalled, so that the install should be checked. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from kube.maintenance.objects import (
    FAILED,
    Maintenance,
    MaintenanceT,
    get_phase,
    get_status,
    is_deleting,
    is_released,
    is_reported_drained,
)
from kube.times import parse_time, parse_time_or_none

STALLED_SECONDS = 10.0
"""Seconds without a status or a change of it after which the functions may be down; a function starts in a few."""


def select_stalled(maintenances: Iterable[MaintenanceT], now: datetime) -> list[MaintenanceT]:
    """Return the maintenances that wait for a function, whose status has not changed for `STALLED_SECONDS`."""
    return [maintenance for maintenance in maintenances if _is_stalled(maintenance, now)]


def _is_stalled(maintenance: Maintenance, now: datetime) -> bool:
    metadata = maintenance["metadata"]
    if is_deleting(maintenance):
        return not is_released(maintenance) and _is_past(parse_time(metadata["deletionTimestamp"]), now)
    if get_phase(maintenance) == FAILED or is_reported_drained(maintenance):
        return False
    last_update = parse_time_or_none(get_status(maintenance).get("lastUpdate"))
    return _is_past(last_update or parse_time(metadata["creationTimestamp"]), now)


def _is_past(time: datetime, now: datetime) -> bool:
    """Return whether the time is at least `STALLED_SECONDS` ago."""
    return (now - time).total_seconds() >= STALLED_SECONDS
