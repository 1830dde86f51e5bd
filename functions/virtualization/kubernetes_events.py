"""Records a Kubernetes Event on a VMI that delays a drain, so that `kubectl describe vmi` shows it."""

from __future__ import annotations

import logging
from datetime import datetime, timezone

from functions.kubernetes_events import refusal
from kube import kubernetes_events
from kube.client.sync_client import Cluster
from kube.virtualization.evacuation import Wait
from kube.virtualization.vmis import API_VERSION, INSTANCE, Item, key

log = logging.getLogger("functions")


def announce(vmi: Item, wait: Wait, cluster: Cluster) -> None:
    """Record a Warning that names what the VMI waits for.

    The Event's name depends on its content, so the same Event is created only once. An API error is only logged,
    because the VMI's budget reports the same.
    """
    namespace, name = key(vmi)
    involved = {"apiVersion": API_VERSION, "kind": INSTANCE, "name": name, "namespace": namespace}
    involved["uid"] = vmi["metadata"]["uid"]
    message = f"node {wait.node} is being drained: {wait.message}"
    of = kubernetes_events.event_name(name, involved["uid"], wait.reason, message)
    now = datetime.now(timezone.utc)
    event = kubernetes_events.event(of, namespace, involved, kubernetes_events.WARNING, wait.reason, message, now)
    if error := cluster.run(refusal(cluster.api, event)):
        log.warning("the Event %s of %s/%s could not be written: %s", wait.reason, namespace, name, error.message)
