"""Record every event in the journal, so that a maintenance can be read and replayed after its object is gone.

In: every event but those of a dry run, which did not happen; from the functions themselves, `attempts.made`.
Out: nothing.
Touches: nothing in the cluster. Writes the journal at `$DATABASE_URL`, else the file `$JOURNAL`; what is older than
`$JOURNAL_DAYS`, or too much for `$JOURNAL_BYTES`, it forgets.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING

from cloudevents.core.base import BaseCloudEvent
from prometheus_client import Counter

from eventing import events, marks
from eventing.deadletters import dead_letter_of
from eventing.journal.entries import attempts_in
from eventing.journal.one_tries import OneTries
from eventing.journal.retention import Pruner, Retention
from eventing.signatures import require_ours
from functions.failures import Retry
from kube.door.sync_client import Cluster

if TYPE_CHECKING:
    from eventing.journal.store import Journal

CONSUMES = ()
"""Every type."""
EMITS = ()
REDELIVERED = Counter("nodemaintenance_events_redelivered_total", "Events that came once more to record")
DEAD = Counter("nodemaintenance_events_dead_total", "Events that could not be delivered")
OPENING, OPENING_SECONDS = OneTries(OSError), 5.0
"""One journal a process: two on one file would number events side by side."""


def record(event: BaseCloudEvent, _cluster: Cluster) -> list[BaseCloudEvent]:
    """Write the event down once, whole; of `attempts.made`, the attempts.

    Raises `Retry` while the journal cannot be written, and `BadEvent` for attempts that are none. It raises `Forged`
    for attempts, and for what names one of our programs as its source, that are not ours: history must not show what
    nobody did.
    """
    arrived = datetime.now(timezone.utc)  # before it waits for the journal, which takes its time to open
    if marks.is_dry_run(event):
        return []
    if event.get_type() == events.ATTEMPTS_MADE or event.get_source().startswith(events.SOURCE):
        require_ours(event)
    try:
        _keep(event, arrived)
    except OSError as error:
        raise Retry(f"the journal cannot be written: {error}") from None
    return []


def _keep(event: BaseCloudEvent, arrived: datetime) -> None:
    with OPENING.turn(OPENING_SECONDS, crowded=OPENING_SECONDS):  # once in the life of a process
        book, pruner = journal(), _pruner()
    if event.get_type() == events.ATTEMPTS_MADE:
        book.write_attempts(attempts_in(event))
    elif not book.write(event, arrived):
        REDELIVERED.inc()
    elif dead_letter_of(event):
        DEAD.inc()
    pruner.event_recorded()


@cache
def journal() -> Journal:
    """The journal of this process, opened at first use."""
    from eventing.journal.store import Journal  # half of a function's memory and start: only the one that records pays

    return Journal.of_environment()


@cache
def _pruner() -> Pruner:
    return Pruner(journal(), Retention.of(os.environ))
