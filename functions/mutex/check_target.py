"""Check a MutexTarget: whether its pools exist, and which nodes belong to them (MUT-20..22).

In: an added, updated or deleted MutexTarget, `target.found`. Out: `target.checked`.
Touches: mutextargets get; mutextargets/status patch; machineconfigpools list; nodes list.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import metadata_of
from functions.mutex.event_objects import Replies, is_for, read, reference_of, write_status
from kube.client.sync_client import Cluster
from kube.mutex import lookup
from kube.mutex.objects import TARGET, is_deleting
from kube.mutex.validation import gathered

CONSUMES = (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED, events.TARGET_FOUND)
EMITS = (events.TARGET_CHECKED,)


def check_target(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Write to the status which nodes the target has and whether it is valid.

    The write comes back as an update event, which changes nothing.
    """
    if not is_for(event, TARGET):
        return []
    about = reference_of(event, TARGET)
    target = read(event, cluster, TARGET)
    if target is None or is_deleting(target):
        gone = event.get_type() == events.RESOURCE_DELETED
        return [events.event(events.TARGET_CHECKED, "check-target", about, cause=event)] if gone else []
    if event.get_type() == events.RESOURCE_UPDATED and _is_own(event, target["metadata"]["generation"]):
        return []
    pools, nodes = cluster.together(lookup.pools(cluster.api), lookup.nodes(cluster.api))
    found = gathered(target, pools, nodes.values())
    if not write_status(target, cluster, {"nodes": found.nodes}, found.verdicts):
        return []
    return [events.event(events.TARGET_CHECKED, "check-target", about, cause=event)]


def _is_own(event: BaseCloudEvent, generation: int) -> bool:
    """Return whether only the status was updated: all conditions already describe the current generation."""
    status = event.get_data()
    told = status.get("status") if isinstance(status, dict) else None
    conditions = told.get("conditions") if isinstance(told, dict) else None
    known = conditions if isinstance(conditions, list) else []
    judged = [each.get("observedGeneration") for each in known if isinstance(each, dict)]
    return (
        bool(judged)
        and all(each == generation for each in judged)
        and metadata_of(event).get("generation") == generation
    )
