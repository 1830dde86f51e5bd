"""Record every event in the journal, so that a maintenance can be read and replayed when its object is gone.

In: every event. Out: nothing.
Touches: nothing in the cluster. Writes the journal at `$JOURNAL`.
"""

from __future__ import annotations

import os
from functools import cache

from cloudevents.core.base import BaseCloudEvent

from eventing.journal import Journal
from functions.errors import Retry
from kube.cluster import Cluster

TAKES = ()
"""Every type."""
GIVES = ()


def record(event: BaseCloudEvent, _cluster: Cluster) -> list[BaseCloudEvent]:
    """Write the event down once, whole. Raises `Retry` while the journal cannot be written."""
    try:
        journal().write(event)
    except OSError as error:
        raise Retry(f"the journal cannot be written: {error}") from None
    return []


@cache
def journal() -> Journal:
    """The journal of this process, opened at first use."""
    return Journal(os.environ.get("JOURNAL", "journal.db"))
