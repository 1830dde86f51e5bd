"""Renew certificates: check every labelled Secret, and make the changes that are due (OSV-20..23).

The step checks the namespaces in the comma-separated list `CERTIFICATE_NAMESPACES`; the default is the product's own
namespace. After publishing a new CA, the step waits `CERTIFICATE_PAUSE` seconds (default: 600) before it issues server
certificates with that CA. If no certificate issued by another CA is still valid, the step does not wait.

In: a PingSource tick; an added, updated or deleted Secret, by reference: no event contains a key. Out: nothing.
Touches: secrets get, list, create, patch in node-maintenance; configmaps list, create, patch in node-maintenance;
events create in node-maintenance; validatingwebhookconfigurations list, patch; mutatingwebhookconfigurations list;
apiservices list; customresourcedefinitions get, list.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events, extensions
from functions.certificates.metrics import CERTIFICATE_COLLECTOR
from functions.certificates.settings import Settings
from functions.failures import Retry
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.client.api_errors import Conflict, NotFound, Unavailable
from kube.client.sync_client import SyncClient


@step(
    "renew-certificates",
    consumes=(events.TICK, events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED),
    emits=(),
    kind="Secret",
    coalescing=HintPolicy(lambda _hint: WorkKey("all certificates")),
)
def renew_certificates(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Renew the certificates that are due; an error in one component does not prevent the renewal of other components.

    Raises `Retry` if a renewal failed with an error that a retry may resolve.
    """
    from functions.certificates.renewal import list_certificate_dates, renew_all

    now = datetime.now(timezone.utc)
    is_tick = event.get_type() == events.TICK
    result = client.run(renew_all(client.api, Settings.from_environment(os.environ), now, is_tick=is_tick))
    if not extensions.is_replay(event):
        CERTIFICATE_COLLECTOR.update(list_certificate_dates(result.states), result.unread_namespaces)
    if any(isinstance(error, Conflict | NotFound | Unavailable) for error in result.errors):
        raise Retry("; ".join(error.message for error in result.errors))
    return []
