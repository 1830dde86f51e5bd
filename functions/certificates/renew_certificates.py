"""Renew certificates: check every labelled Secret, and make the changes that are due (OSV-20..23).

The step checks the namespaces in `CERTIFICATE_NAMESPACES`, separated by commas; the default is the product's own
namespace. A server uses a certificate of a new CA only `CERTIFICATE_PAUSE` seconds (600) after the CA was published. It
does so at once if no certificate of another CA works any more.

In: a PingSource tick; an added, updated or deleted Secret, by reference: no event contains a key. Out: nothing.
Touches: secrets get, list, create, patch in node-maintenance; configmaps list, create, patch in node-maintenance;
events create in node-maintenance; validatingwebhookconfigurations list, patch; mutatingwebhookconfigurations list;
apiservices list; customresourcedefinitions get, list.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events, replay_extensions
from functions.certificates.metrics import PICTURES
from functions.certificates.settings import Settings
from functions.failures import Retry
from functions.pass_strategies import LookingAtState
from kube.client.api_errors import Conflict, NotFound, Unavailable
from kube.client.sync_client import Cluster

CONSUMES = (events.TICK, events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
EMITS = ()
LOOKING = LookingAtState(lambda _hint: "all certificates")


def renew_certificates(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Make the changes that are due; a rejected change of one component does not stop the others.

    Raises `Retry` if a retry may succeed.
    """
    from functions.certificates.renewal_pass import dates, renewed

    now = datetime.now(timezone.utc)
    is_tick = event.get_type() == events.TICK
    found = cluster.run(renewed(cluster.api, Settings.of(os.environ), now, is_tick=is_tick))
    if not replay_extensions.is_replay(event):
        PICTURES.update(dates(found.states), found.unread)
    if any(isinstance(error, Conflict | NotFound | Unavailable) for error in found.errors):
        raise Retry("; ".join(error.message for error in found.errors))
    return []
