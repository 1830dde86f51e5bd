"""Tests for `events --follow` while other events are imported into the journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.terminal.event_follower import RECHECK_SECONDS, EventFollower
from eventing.journal.entries import Attempt, Query
from eventing.journal.store import Journal

NOW = datetime.now(timezone.utc)
IMPORT_AGES = [timedelta(hours=1), timedelta(hours=-1)]
"""Ages of imported events; negative if the clock of the exporting machine is ahead."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        yield journal


def build_follower(journal: Journal) -> EventFollower:
    return EventFollower(journal, Query(), shows_ticks=False)


def build_foreign_event(name: str) -> CloudEvent:
    """Build an event to which no function subscribes, so that no attempt counts as missing."""
    return CloudEvent({"id": name, "source": "/test", "type": "dev.example.done"}, {})


def build_attempt(name: str, function: str = "status") -> Attempt:
    return Attempt("/test", name, function, NOW, 0.02, 200)


def read_rows(follower: EventFollower) -> list[str]:
    """Return the id and the attempts of each event whose row the follower prints now."""
    return [" ".join(line.split()[3:]) for line in follower.read_lines() if not line.startswith("TIME")]


@pytest.mark.parametrize("age", IMPORT_AGES)
def test_event_before_import_is_shown_again_with_its_attempt(journal: Journal, age: timedelta) -> None:
    """Check that the follower still waits for the attempts of earlier events after an import."""
    journal.write_event(build_foreign_event("live"), NOW)
    follower = build_follower(journal)
    assert read_rows(follower) == ["live"]

    journal.write_event(build_foreign_event("imported"), NOW - age)
    assert read_rows(follower) == ["imported"]
    journal.write_attempts([build_attempt("live")])

    assert read_rows(follower) == ["live status 20 ms"]


@pytest.mark.parametrize("age", IMPORT_AGES)
def test_event_after_import_is_shown_again_with_its_attempt(journal: Journal, age: timedelta) -> None:
    """Check that the follower shows new events after an import, even if the imported events have later times."""
    journal.write_event(build_foreign_event("imported"), NOW - age)
    follower = build_follower(journal)
    assert read_rows(follower) == ["imported"]

    journal.write_event(build_foreign_event("live"), NOW)
    assert read_rows(follower) == ["live"]
    journal.write_attempts([build_attempt("live")])

    assert read_rows(follower) == ["live status 20 ms"]
    assert read_rows(follower) == []


def test_old_events_are_not_read_again(journal: Journal) -> None:
    """Check that an event is read again only for a limited time, and initially only if it is one of the newest."""
    journal.write_events([(build_foreign_event("old"), NOW - timedelta(minutes=1)), (build_foreign_event("new"), NOW)])
    seconds = [0.0]
    follower = EventFollower(journal, Query(), shows_ticks=False, clock=lambda: seconds[0])
    assert read_rows(follower) == ["old", "new"]

    journal.write_attempts([build_attempt("old"), build_attempt("new")])
    assert read_rows(follower) == ["new status 20 ms"]
    seconds[0] += RECHECK_SECONDS
    assert read_rows(follower) == []
    journal.write_attempts([build_attempt("new", "record")])

    assert read_rows(follower) == []
