"""Record every event in the journal, so that a maintenance can be inspected and replayed after its object is gone.

In: every event except those of a dry run, which changes nothing; from the functions themselves, `attempts.made`.
Out: nothing.
Touches: nothing in the cluster. Writes the journal at `$DATABASE_URL`, else the file `$JOURNAL`. The function prunes
events that are older than `$JOURNAL_DAYS`, and the oldest ones if the journal is larger than `$JOURNAL_BYTES`.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING

from cloudevents.core.base import BaseCloudEvent
from prometheus_client import Counter

from eventing import events, replay_extensions
from eventing.dead_letters import dead_letter_of
from eventing.journal.entries import attempts_in
from eventing.journal.fail_fast_lock import OneTries
from eventing.journal.retention import Pruner, Retention
from eventing.signatures import require_ours
from functions.failures import Retry
from kube.client.sync_client import Cluster

if TYPE_CHECKING:
    from eventing.journal.store import Journal

CONSUMES = ()
"""An empty tuple stands for all event types."""
EMITS = ()
REDELIVERED = Counter("nodemaintenance_events_redelivered_total", "Events that came once more to record")
DEAD = Counter("nodemaintenance_events_dead_total", "Events that could not be delivered")
OPENING, OPENING_SECONDS = OneTries(OSError), 5.0
"""Lock for opening the journal, and the seconds that a thread waits for it.

Without the lock, two threads could open the process's journal twice.
"""


def record(event: BaseCloudEvent, _cluster: Cluster) -> list[BaseCloudEvent]:
    """Record the complete event, once; for `attempts.made`, record the attempts in it.

    Raises `Retry` while the journal cannot be written, and `BadEvent` for malformed attempts. Raises `Forged` if the
    signature is invalid and the event carries attempts or names one of our programs as its source. The journal must not
    show actions that never happened.
    """
    arrived = datetime.now(timezone.utc)  # taken before the wait for the journal, which opens slowly
    if replay_extensions.is_dry_run(event):
        return []
    if event.get_type() == events.ATTEMPTS_MADE or event.get_source().startswith(events.SOURCE):
        require_ours(event)
    try:
        _keep(event, arrived)
    except OSError as error:
        raise Retry(f"the journal cannot be written: {error}") from None
    return []


def _keep(event: BaseCloudEvent, arrived: datetime) -> None:
    with OPENING.turn(OPENING_SECONDS, crowded=OPENING_SECONDS):  # only the first call opens the journal
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
    """Return this process's journal, and open it on first use."""
    from eventing.journal.store import Journal  # half of memory and startup time; only `record` needs it

    return Journal.of_environment()


@cache
def _pruner() -> Pruner:
    return Pruner(journal(), Retention.of(os.environ))
