"""Test of the journal's size estimate against the size of its SQLite file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import Reference, event
from eventing.journal.store import Attempt, Journal

NOW = datetime.now(timezone.utc)
COUNT, ATTEMPTS = 500, 5
Make = Callable[[int], CloudEvent]


def ours(number: int) -> CloudEvent:
    reference = Reference("nodemaintenance.medik8s.io/v1beta1", f"drain-{number % 10}", f"uid-{number % 10:036}")
    return event(events.PODS_GONE, "podsource", reference, "node-1", seed=str(number), data={"number": number})


def named(key: str) -> Make:
    """Return a function that builds foreign events whose id, source and type contain `key`."""
    return lambda number: CloudEvent({"id": f"{number}-{key}", "source": f"/{key}", "type": key}, None)


def long(length: int) -> Make:
    return lambda number: CloudEvent({"id": str(number), "source": "/x", "type": "x", "long": "x" * length}, None)


POSTED = {
    "ours": ours,
    "small ones": named("x"),
    "long names": named("x" * 500),
    "names of few characters and many bytes": named("\N{MEMO}" * 125),
    "half a page each": long(1950),
    "some pages each": long(10_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("answer", [(204, ""), (503, "busy")], ids=["accepted", "refused"])
@pytest.mark.parametrize("make", POSTED.values(), ids=POSTED)
def test_the_file_takes_at_most_twice_what_is_counted(tmp_path: Path, make: Make, answer: tuple[int, str]) -> None:
    """X-6: The file is at most twice as large as the estimate, for any events, each with five attempts.

    A full volume would end the pod. The estimate is also at most twice the file's size.
    """
    status, error = answer
    with closing(Journal(tmp_path / "journal.db")) as journal:
        made = [(make(number), NOW + timedelta(seconds=number)) for number in range(COUNT)]
        journal.write_all(made)
        for one, at in made:
            first = Attempt(one.get_source(), one.get_id(), "evict", at, 0.1, status, error=error)
            journal.write_attempts(replace(first, function=f"function-{number}") for number in range(ATTEMPTS))
        counted, written = journal.size(), journal.written

    assert counted / 2 < (tmp_path / "journal.db").stat().st_size < 2 * counted
    assert written == counted
