"""Renew certificates: look at every labelled Secret, and do what is due now (OSV-20..23).

It looks at the namespaces in `CERTIFICATE_NAMESPACES`, with commas between; without it at the product's own. A server
shows a certificate of a new authority `CERTIFICATE_PAUSE` seconds (600) after that was published, and not before.

In: a PingSource tick; an added, updated or deleted Secret, by reference: no event has a key in it. Out: nothing.
Touches: secrets get, list, create, patch in node-maintenance; configmaps list, create, patch in node-maintenance;
events create in node-maintenance; validatingwebhookconfigurations list, patch; mutatingwebhookconfigurations list;
apiservices list; customresourcedefinitions get, list.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events, marks
from functions.certificates.metrics import PICTURES
from functions.certificates.settings import Settings
from functions.failures import Retry
from functions.hints import LookingAtState
from kube.door.api_errors import Conflict, NotFound, Unavailable
from kube.door.sync_client import Cluster

CONSUMES = (events.TICK, events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
EMITS = ()
LOOKING = LookingAtState(lambda _hint: "all certificates")


def renew_certificates(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Do what is due. What one component is refused stops no other; raises `Retry` when it may pass later."""
    from functions.certificates.survey import dates, renewed

    now = datetime.now(timezone.utc)
    is_tick = event.get_type() == events.TICK
    found = cluster.run(renewed(cluster.api, Settings.of(os.environ), now, is_tick=is_tick))
    if not marks.is_replay(event):
        PICTURES.update(dates(found.states), found.unread)
    if any(isinstance(error, Conflict | NotFound | Unavailable) for error in found.errors):
        raise Retry("; ".join(error.message for error in found.errors))
    return []
