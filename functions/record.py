"""Record every event in the journal, so that a deleted maintenance can still be inspected and replayed.

In: every event except dry-run events, which change no object; `attempts.made`, which the functions themselves publish.
Out: nothing.
Touches: nothing in the cluster. The step writes to the database `$DATABASE_URL`, or else to the file `$JOURNAL`. It
deletes events that are older than `$JOURNAL_DAYS`, and the oldest events if the journal exceeds `$JOURNAL_BYTES`.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING

from cloudevents.core.base import BaseCloudEvent
from prometheus_client import Counter

from eventing import events, extensions
from eventing.dead_letters import parse_dead_letter
from eventing.journal.entries import parse_attempts
from eventing.journal.fail_fast_lock import FailFastLock
from eventing.journal.retention import Pruner, Retention
from eventing.signatures import require_valid_signature
from functions.failures import Retry
from functions.steps import step
from kube.client.sync_client import SyncClient

if TYPE_CHECKING:
    from eventing.journal.store import Journal

REDELIVERED_EVENTS = Counter("nodemaintenance_events_redelivered_total", "Events that record received again")
DEAD_LETTERS = Counter("nodemaintenance_events_dead_total", "Events that could not be delivered")
JOURNAL_OPENING, JOURNAL_OPEN_TIMEOUT_SECONDS = FailFastLock(OSError), 5.0
"""Lock for opening the journal, and its timeout in seconds.

Without the lock, two threads could each open a journal.
"""


@step("record", consumes=(), emits=())  # An empty `consumes` selects all event types.
def record(event: BaseCloudEvent, _client: SyncClient) -> list[BaseCloudEvent]:
    """Record the complete event once; for `attempts.made`, record the attempts that the event contains.

    The journal must not contain actions that never happened. Attempts, and events from this project's components, must
    therefore be signed; otherwise, raises `InvalidSignature`. Raises `Retry` if the journal cannot be written, and
    `BadEvent` for malformed attempts.
    """
    arrived_at = datetime.now(timezone.utc)  # Take the time before opening the journal, which is slow.
    if extensions.is_dry_run(event):
        return []
    if event.get_type() == events.ATTEMPTS_MADE or event.get_source().startswith(events.SOURCE_PREFIX):
        require_valid_signature(event)
    try:
        _store_event(event, arrived_at)
    except OSError as error:
        raise Retry(f"cannot write to the journal: {error}") from None
    return []


def _store_event(event: BaseCloudEvent, arrived_at: datetime) -> None:
    # The first call of `get_journal` opens the journal.
    with JOURNAL_OPENING.hold(JOURNAL_OPEN_TIMEOUT_SECONDS, contended_timeout=JOURNAL_OPEN_TIMEOUT_SECONDS):
        journal, pruner = get_journal(), _get_pruner()
    if event.get_type() == events.ATTEMPTS_MADE:
        journal.write_attempts(parse_attempts(event))
    elif not journal.write_event(event, arrived_at):
        REDELIVERED_EVENTS.inc()
    elif parse_dead_letter(event):
        DEAD_LETTERS.inc()
    pruner.prune_if_due()


@cache
def get_journal() -> Journal:
    """Return this process's journal, which is opened on first use."""
    # Import it here, because the import doubles a process's memory and startup time, and only `record` needs it.
    from eventing.journal.store import Journal

    return Journal.from_environment()


@cache
def _get_pruner() -> Pruner:
    return Pruner(get_journal(), Retention.from_environment(os.environ))
