"""Tests for the analysis of the journal of an idle period, in which only PingSource ticks should occur."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from cloudevents.core.v1.event import CloudEvent

from bench.cases import CASES, Observation
from bench.findings import Tick
from bench.observations.idle import MEASUREMENTS, read_idle_period
from eventing.events import PODS_GONE, RESOURCE_UPDATED, TICK
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal

START = 1_800_000_000.0


def convert_to_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, timezone.utc)


def test_ticks_are_separated_from_other_events(tmp_path: Path) -> None:
    """Check that a tick ends with the last retry of its attempts, and that all other events and attempts count."""
    events = [
        *[("1", TICK, 15.0), ("2", PODS_GONE, 20.0), ("3", TICK, 30.0)],
        *[("4", PODS_GONE, 70.0), ("5", RESOURCE_UPDATED, 40.0)],
    ]
    attempts = [
        ("1", "resync", 15.0, 1.5),
        ("1", "resync", 17.0, 0.5),
        ("2", "evict", 20.1, 0.1),
        ("3", "resync", 30.0, 0.25),
        ("5", "guard", 40.1, 0.01),
    ]
    journal = Journal(tmp_path / "journal.db")
    for event_id, event_type, second in events:
        journal.write_event(
            CloudEvent({"id": event_id, "source": "s", "type": event_type, "time": convert_to_datetime(second)}, {}),
            convert_to_datetime(second),
        )
    journal.write_attempts(
        Attempt("s", event_id, function, convert_to_datetime(second), seconds, 200)
        for event_id, function, second, seconds in attempts
    )
    journal.close()

    idle_period = read_idle_period(tmp_path / "journal.db", [], START, START + 60)

    assert idle_period.ticks == [Tick(START + 15.0, 2.5), Tick(START + 30.0, 0.25)]
    assert (idle_period.events, idle_period.journal_rows, idle_period.foreign_updates) == (1, 2, 1)


def test_every_observation_has_a_measurement() -> None:
    assert MEASUREMENTS.keys() == {case for case in CASES if isinstance(case, Observation)}
