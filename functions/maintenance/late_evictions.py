"""Publishes evictions that were granted behind the look that sent them, where no later look of this process told them.

The next look may be another process's: where a node is drained on which the product runs, the broker begins anew on
another node, and sends what follows to another pod. What nobody has taken is published as one more answer to the event
of the look that sent it, after some time or when the process ends: each eviction is in the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.maintenance.evicted_pods import tell
from functions.maintenance.subject import node_of, reference_of
from kube.door.eviction_batch import granted_late_of_all, on_granted_late
from kube.door.sync_client import Cluster
from kube.evictions import Batch
from kube.maintenance.objects import Maintenance

Publish: TypeAlias = Callable[[BaseCloudEvent, list[BaseCloudEvent]], None]
"""Takes the event of a look, and what else answers it."""


class Look(NamedTuple):
    """The last one at a node that ended before all its evictions were answered."""

    event: BaseCloudEvent
    maintenance: Maintenance
    cluster: Cluster


class LateEvictions:
    """Those of this process, by node."""

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}
        self._publish: Publish | None = None

    def publish_by(self, publish: Publish) -> None:
        """Have what comes late be published by this from now on."""
        self._publish = publish

    def expect(self, event: BaseCloudEvent, maintenance: Maintenance, cluster: Cluster) -> None:
        """The look at this event has ended, and evictions that it sent are still to be answered."""
        self._looks[node_of(event)] = Look(event, maintenance, cluster)
        on_granted_late(cluster.api, self._tell)

    def close(self) -> None:
        """Publish what no look will take any more; what the API server is about to answer is awaited for a moment."""
        for cluster in {look.cluster for look in self._looks.values()}:
            for node, pods in cluster.run(granted_late_of_all(cluster.api)).items():
                self._tell(node, pods)
        self._looks.clear()

    def _tell(self, node: str, pods: list[dict[str, str]]) -> None:
        """Pods as in `pods.evicted`. Their look is known: nobody else sends evictions."""
        event, maintenance, _ = self._looks[node]
        tell(maintenance, Batch(evicted=pods), event)
        if self._publish:
            about, seed = reference_of(event), pods[0]["uid"]
            late = events.event(
                events.PODS_EVICTED, "evict", about, node, cause=event, seed=seed, data={"evicted": pods}
            )
            self._publish(event, [late])
