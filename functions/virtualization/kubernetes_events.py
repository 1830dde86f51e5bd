"""Records a Kubernetes Event on a VMI that delays a drain, so that `kubectl describe vmi` shows it."""

from __future__ import annotations

import logging
from datetime import datetime, timezone

from functions.kubernetes_events import record_event
from kube import kubernetes_events
from kube.client.sync_client import SyncClient
from kube.virtualization.evacuation import Wait
from kube.virtualization.vmis import API_VERSION, VMI_KIND, Resource, get_key

log = logging.getLogger("functions")


def record_wait(vmi: Resource, wait: Wait, client: SyncClient) -> None:
    """Record a Warning Event that reports what the VMI waits for.

    The Event's name depends on its content, so the same Event is created only once. An API error is only logged,
    because the VMI's budget reports the same reason.
    """
    namespace, name = get_key(vmi)
    involved = {"apiVersion": API_VERSION, "kind": VMI_KIND, "name": name, "namespace": namespace}
    involved["uid"] = vmi["metadata"]["uid"]
    message = f'node "{wait.node}" is being drained: {wait.message}'
    event_name = kubernetes_events.build_event_name(name, involved["uid"], wait.reason, message)
    now = datetime.now(timezone.utc)
    event = kubernetes_events.build_event(
        event_name, namespace, involved, kubernetes_events.WARNING_TYPE, wait.reason, message, now
    )
    if error := client.run(record_event(client.api, event)):
        log.warning("cannot record Event %s of VMI %s/%s: %s", wait.reason, namespace, name, error.message)
