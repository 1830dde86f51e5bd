"""Test that compares the journal's estimated size with the size of its SQLite file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.journal.store import Attempt, Journal

TEST_START = datetime.now(timezone.utc)
EVENT_COUNT, ATTEMPTS_PER_EVENT = 500, 5
BuildEvent = Callable[[int], CloudEvent]


def build_pods_gone_event(number: int) -> CloudEvent:
    reference = ObjectReference("nodemaintenance.medik8s.io/v1beta1", f"drain-{number % 10}", f"uid-{number % 10:036}")
    return build_event(events.PODS_GONE, "podsource", reference, "node-1", seed=str(number), data={"number": number})


def create_event_builder_with_name(name: str) -> BuildEvent:
    """Return a function that builds events of another source, whose id, source and type contain `name`."""
    return lambda number: CloudEvent({"id": f"{number}-{name}", "source": f"/{name}", "type": name}, None)


def create_event_builder_with_long_attribute(length: int) -> BuildEvent:
    return lambda number: CloudEvent({"id": str(number), "source": "/x", "type": "x", "long": "x" * length}, None)


EVENT_BUILDERS = {
    "product events": build_pods_gone_event,
    "small": create_event_builder_with_name("x"),
    "long names": create_event_builder_with_name("x" * 500),
    "names with multi-byte characters": create_event_builder_with_name("\N{MEMO}" * 125),
    "events of half a database page": create_event_builder_with_long_attribute(1950),
    "events of several database pages": create_event_builder_with_long_attribute(10_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("status_and_error", [(204, ""), (503, "busy")], ids=["accepted", "refused"])
@pytest.mark.parametrize("build_event", EVENT_BUILDERS.values(), ids=EVENT_BUILDERS)
def test_file_size_and_estimate_differ_by_at_most_factor_two(
    tmp_path: Path, build_event: BuildEvent, status_and_error: tuple[int, str]
) -> None:
    """X-6: the file's actual and estimated sizes differ by at most a factor of two.

    Each event has five attempts. If the estimate were too low, the journal could fill the volume and make the pod fail.
    """
    status, error = status_and_error
    with closing(Journal(tmp_path / "journal.db")) as journal:
        dated_events = [(build_event(number), TEST_START + timedelta(seconds=number)) for number in range(EVENT_COUNT)]
        journal.write_events(dated_events)
        for event, at in dated_events:
            first = Attempt(event.get_source(), event.get_id(), "evict", at, 0.1, status, error=error)
            journal.write_attempts(
                replace(first, function=f"function-{number}") for number in range(ATTEMPTS_PER_EVENT)
            )
        estimated_bytes, written_bytes = journal.measure_bytes(), journal.written_bytes

    assert estimated_bytes / 2 < (tmp_path / "journal.db").stat().st_size < 2 * estimated_bytes
    assert written_bytes == estimated_bytes
