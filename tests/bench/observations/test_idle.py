"""The analysis of the journal for a period in which nothing should happen."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from cloudevents.core.v1.event import CloudEvent

from bench.cases import CASES, Observation
from bench.findings import Tick
from bench.observations.idle import MEASURES, seen
from eventing.events import PODS_GONE, RESOURCE_UPDATED, TICK
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal

START = 1_800_000_000.0


def moment(after: float) -> datetime:
    return datetime.fromtimestamp(START + after, timezone.utc)


def test_ticks_are_told_from_what_else_happened(tmp_path: Path) -> None:
    """Check that ticks last until their last retry has ended, and that other events and attempts are counted."""
    happened = [
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
    for name, kind, at in happened:
        journal.write(CloudEvent({"id": name, "source": "s", "type": kind, "time": moment(at)}, {}), moment(at))
    journal.write_attempts(Attempt("s", name, who, moment(at), took, 200) for name, who, at, took in attempts)
    journal.close()

    quiet = seen(tmp_path / "journal.db", [], START, START + 60)

    assert quiet.ticks == [Tick(START + 15.0, 2.5), Tick(START + 30.0, 0.25)]
    assert (quiet.events, quiet.rows, quiet.updates) == (1, 2, 1)


def test_every_observation_is_measured_somehow() -> None:
    assert MEASURES.keys() == {case for case in CASES if isinstance(case, Observation)}
