"""The project's event types with their meaning and data, and the function that builds an event.

All events are CloudEvents 1.0 with JSON data. The project's own events have these extensions:

* `maintenance`, `run`, `rule`, `target` or `round`: the uid of the object that the event is about.
* `node`: the node's name, if the event is about a node and the name is a valid attribute value.
* `partitionkey`: the node's name, or the object's uid for an event without a node; used by brokers that preserve order.
* `cause`: the id of the event that triggered this event.
* `traceparent`: see `eventing.extensions`.
* The replay extensions, if the triggering event is a replay: see `eventing.extensions`.

The data is `{"maintenance": {apiVersion, name, uid}, "node": name}`, plus the fields that `TYPE_DESCRIPTIONS` lists. In
events about a run, rule or target, the key is `run`, `rule` or `target`, and the data also contains the object's
namespace.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.extensions import (
    EXTENSION_OF_KIND,
    TRACEPARENT_EXTENSION,
    get_replay_extensions,
    select_traceparent,
)
from eventing.http_binding import INVALID_CHARACTERS

# Changes of API objects from an ApiServerSource in `mode: Resource`: the data is the complete object; the extensions
# are
# kind, apiversion, name and namespace.
RESOURCE_ADDED = "dev.knative.apiserver.resource.add"
RESOURCE_UPDATED = "dev.knative.apiserver.resource.update"
RESOURCE_DELETED = "dev.knative.apiserver.resource.delete"
# Changes of API objects from an ApiServerSource in `mode: Reference`: the data is only a reference to the object.
REFERENCE_ADDED = "dev.knative.apiserver.ref.add"
REFERENCE_UPDATED = "dev.knative.apiserver.ref.update"
REFERENCE_DELETED = "dev.knative.apiserver.ref.delete"
# The tick: the event that the PingSource sends every 15 seconds.
TICK = "dev.knative.sources.ping"

# This project's events about maintenances, in the order in which they occur.
MAINTENANCE_PENDING = "dev.nodemaintenance.maintenance.pending"
MAINTENANCE_BEGUN = "dev.nodemaintenance.maintenance.begun"
NODE_DRIFTED = "dev.nodemaintenance.node.drifted"
NODE_CORDONED = "dev.nodemaintenance.node.cordoned"
NODE_TAINTED = "dev.nodemaintenance.node.tainted"
PODS_EVICTED = "dev.nodemaintenance.pods.evicted"
PODS_GONE = "dev.nodemaintenance.pods.gone"
PODS_ADDED = "dev.nodemaintenance.pods.added"
BUDGET_OPENED = "dev.nodemaintenance.budget.opened"
VIRT_LAUNCHERS_WAIT_CHANGED = "dev.nodemaintenance.virt_launchers.wait_changed"
DRAIN_OVERDUE = "dev.nodemaintenance.drain.overdue"
DRAIN_ESCALATED = "dev.nodemaintenance.drain.escalated"
NODE_DRAINED = "dev.nodemaintenance.node.drained"
MAINTENANCE_STEP_FAILED = "dev.nodemaintenance.maintenance.step_failed"
MAINTENANCE_RESTORE_PENDING = "dev.nodemaintenance.maintenance.restore_pending"
NODE_RESTORED = "dev.nodemaintenance.node.restored"

# This project's events about upgrade runs, in the order in which they occur.
RULE_CHECK_PENDING = "dev.nodemaintenance.rule.check_pending"
RULE_CHECKED = "dev.nodemaintenance.rule.checked"
TARGET_CHECK_PENDING = "dev.nodemaintenance.target.check_pending"
TARGET_CHECKED = "dev.nodemaintenance.target.checked"
RUN_CHECK_PENDING = "dev.nodemaintenance.run.check_pending"
RUN_VALIDATED = "dev.nodemaintenance.run.validated"
UPGRADE_DETECTED = "dev.nodemaintenance.upgrade.detected"
POOLS_CLAIMED = "dev.nodemaintenance.pools.claimed"
POOLS_PAUSED = "dev.nodemaintenance.pools.paused"
NODES_LABELLED = "dev.nodemaintenance.nodes.labelled"
POOLS_EDITED = "dev.nodemaintenance.pools.edited"
JOB_DUE = "dev.nodemaintenance.job.due"
NODE_PREJOBS_DONE = "dev.nodemaintenance.node.prejobs_done"
NODE_RELEASED = "dev.nodemaintenance.node.released"
NODE_UPGRADED = "dev.nodemaintenance.node.upgraded"
NODE_DONE = "dev.nodemaintenance.node.done"
RUN_HALTED = "dev.nodemaintenance.run.halted"
RUN_NODES_DONE = "dev.nodemaintenance.run.nodes_done"
RUN_RESTORE_PENDING = "dev.nodemaintenance.run.restore_pending"
RUN_RESTORED = "dev.nodemaintenance.run.restored"

# The event that continues the labelling of nodes with their CPU models and features.
LABELS_DUE = "dev.nodemaintenance.labels.due"

TYPE_DESCRIPTIONS = {
    MAINTENANCE_PENDING: "a NodeMaintenance waits to begin; or it has begun, and its Lease must be renewed or its "
    "metadata restored; data: begun",
    MAINTENANCE_BEGUN: "the finalizer, the Lease and the number of pods of a NodeMaintenance are in place; "
    "data: totalpods, evictionPods, podsVersion, maintenanceVersion, closed, unreachable, left",
    NODE_DRIFTED: "a node under maintenance is not cordoned, not tainted or not labelled; data: message, again",
    NODE_CORDONED: "the node is cordoned and takes no new pods; data: again",
    NODE_TAINTED: "the node is cordoned and tainted, so its pods may be evicted; data: again",
    PODS_EVICTED: "`evict` has sent a batch of evictions; `more` is set if other pods may be evicted immediately; "
    "data: evicted [namespace, name, uid, action], blocked [namespace, name, uid, reason, message, budget, healthy, "
    "needed, allowsNone, looserBudget, retryAfter], error, podsVersion, budgetsVersion, maintenanceVersion, closed, "
    "unreachable, left",
    PODS_GONE: "pods have left a node under maintenance; `progress` is set if all remaining pods are terminating, "
    "otherwise `more`; data: podsVersion",
    PODS_ADDED: "pods that must leave were added to a node under maintenance; data: podsVersion",
    BUDGET_OPENED: "a PodDisruptionBudget allows the eviction of a waiting pod, or no longer covers the pod; "
    "data: budget, budgetsVersion, podsVersion (only in the first hint)",
    VIRT_LAUNCHERS_WAIT_CHANGED: "the reason why virt-launcher pods on a node under maintenance wait has changed or no "
    "longer exists",
    DRAIN_OVERDUE: "a drain has passed its deadline or the time of its next escalation step, and the status "
    "does not report that; data: action, after (only if a step is due)",
    DRAIN_ESCALATED: "an escalation step begins, which the status and a Kubernetes Event report; data: action, after",
    NODE_DRAINED: "a new list of the node's pods contains no pod that must leave; "
    "data: evicted, podsVersion, maintenanceVersion, closed",
    MAINTENANCE_STEP_FAILED: "a step of a maintenance failed; data: step, error, begun, leaseErrors, waits",
    MAINTENANCE_RESTORE_PENDING: "a NodeMaintenance is deleted, no longer exists or has lost its Lease, and its node "
    "must be restored",
    NODE_RESTORED: "the node's cordon and taints, and the maintenance's Lease and finalizer, are removed; data: "
    "nodeDeleted (only if the node no longer exists)",
    RULE_CHECK_PENDING: "a MutexRule must be checked",
    RULE_CHECKED: "a MutexRule has become valid or invalid, or no longer exists",
    TARGET_CHECK_PENDING: "a MutexTarget must be checked, or its nodes have changed",
    TARGET_CHECKED: "a MutexTarget has become valid or invalid, or no longer exists",
    RUN_CHECK_PENDING: "a MutexRunConfig must be checked",
    RUN_VALIDATED: "all objects that a MutexRunConfig names exist and are valid, and it has no active run",
    UPGRADE_DETECTED: "the control plane is upgraded, or the run pauses its pools early, and a worker has an older "
    "version; data: version",
    POOLS_CLAIMED: "the run has claimed its pools and recorded their original state",
    POOLS_PAUSED: "the targets' pools are paused, so that no node is upgraded",
    NODES_LABELLED: "each unreleased node of the run has a label for each rule",
    POOLS_EDITED: "the canary selects the nodes without rule labels; the targets' pools select the nodes with all rule "
    "labels",
    JOB_DUE: "a Job of a run must be created, or has ended",
    NODE_PREJOBS_DONE: "all Jobs before the upgrade of a node are complete",
    NODE_RELEASED: "the run's labels are removed from a node, so that it is upgraded",
    NODE_UPGRADED: "a released node has the desired version",
    NODE_DONE: "all Jobs after the upgrade of a node are complete, or the node no longer exists",
    RUN_HALTED: "a run waits for an administrator; data: error",
    RUN_NODES_DONE: "all nodes of a run are done",
    RUN_RESTORE_PENDING: "a MutexRunConfig that is deleted, invalid or without an upgrade still has claimed pools; "
    "or a node still has labels of a run that no longer exists",
    RUN_RESTORED: "the pools and nodes are back in their state before the run",
    LABELS_DUE: "the labelling of all nodes with their CPU models and features continues with the next page of nodes; "
    "data: after, from, began",
}
"""Meaning and data of each event type that this project emits to the broker."""

TYPE_PREFIXES = ("dev.nodemaintenance.", "dev.knative.")
RESOURCE_TYPES = (RESOURCE_ADDED, RESOURCE_UPDATED, RESOURCE_DELETED)
REFERENCE_TYPES = (REFERENCE_ADDED, REFERENCE_UPDATED, REFERENCE_DELETED)
KNOWN_TYPES = (*TYPE_DESCRIPTIONS, *RESOURCE_TYPES, *REFERENCE_TYPES, TICK)
"""All event types that are sent through the broker, including those of the Knative sources."""
FAILURE_TYPES = (MAINTENANCE_STEP_FAILED, RUN_HALTED)
"""Types of the events which report that a step or a run failed."""

# The event with which each function posts its attempts to `record`, bypassing the broker; data: attempts.
ATTEMPTS_MADE = "dev.nodemaintenance.attempts.made"

TYPES_BY_FLAG = {
    "progress": (MAINTENANCE_BEGUN, PODS_EVICTED, PODS_GONE, DRAIN_OVERDUE, NODE_DRAINED, MAINTENANCE_STEP_FAILED),
    "more": (
        *(NODE_TAINTED, PODS_GONE, PODS_ADDED, BUDGET_OPENED, VIRT_LAUNCHERS_WAIT_CHANGED, PODS_EVICTED),
        *(DRAIN_OVERDUE, DRAIN_ESCALATED),
    ),
    "job": (POOLS_EDITED, JOB_DUE, NODE_UPGRADED, NODE_DONE),
    "survey": (RULE_CHECKED, TARGET_CHECKED, RUN_RESTORED),
}
"""Extensions with the value "true" on events of these types, so that one Trigger can select several types.

With `progress`, the event may change a maintenance's status; with `more`, pods may be ready for eviction. With `job`, a
Job may have to be created; with `survey`, a run may be able to continue. A broker evaluates every Trigger for every
event, and some brokers run a process per Trigger. One Trigger per extension is therefore cheaper than one per type.
"""
OPTIONAL_FLAGS = {PODS_EVICTED: ("more",), PODS_GONE: ("progress", "more")}
"""Flags that are set on events of a type only if the emitter passes them to `build_event`."""

SOURCE_PREFIX = "https://nodemaintenance.dev/"
RESYNC_SOURCE = f"{SOURCE_PREFIX}resync"
"""Source of the events that `resync` emits about maintenances."""
MAX_NAME_CHARACTERS = 253
"""Maximum length of an object's name, in characters."""
ID_NAMESPACE = uuid.UUID("6b0e7f0a-3a6e-5c1b-9c39-0e5b8f1f6a4d")
"""UUID namespace of the version 5 UUIDs that are used as event ids.

An event's id is derived from its cause, so that a duplicate has the same id.
"""


def shorten_type(event_type: str) -> str:
    """Return the event type without its prefix, as users read and enter it."""
    for prefix in TYPE_PREFIXES:
        event_type = event_type.removeprefix(prefix)
    return event_type


def expand_type(name: str) -> str:
    """Return the known event type that ends with `name`, or `name` itself if there is none."""
    return next((known for known in KNOWN_TYPES if known == name or known.endswith(f".{name}")), name)


@dataclass(frozen=True)
class ObjectReference:
    """Reference to the object that an event is about, which suffices to read it and to detect its replacement."""

    api_version: str
    name: str
    uid: str
    namespace: str = ""
    kind: str = "NodeMaintenance"

    @classmethod
    def from_object(cls, obj: Mapping[str, Any]) -> ObjectReference:
        """Build the reference to an API object for event data."""
        metadata, kind = obj["metadata"], obj.get("kind", "NodeMaintenance")
        return cls(obj["apiVersion"], metadata["name"], metadata["uid"], metadata.get("namespace", ""), kind)

    @property
    def extension(self) -> str:
        """Return the event extension for this kind of object, which is also the key of the reference in event data."""
        return EXTENSION_OF_KIND[self.kind]

    def as_data(self) -> dict[str, str]:
        """Return the reference as event data."""
        reference = {"apiVersion": self.api_version, "name": self.name, "uid": self.uid}
        return {**reference, "namespace": self.namespace} if self.namespace else reference

    def as_partial_object(self, node: str) -> dict[str, Any]:
        """Build a minimal NodeMaintenance for `node`, which stands for a deleted NodeMaintenance."""
        kind = {"apiVersion": self.api_version, "kind": "NodeMaintenance"}
        return {**kind, "metadata": {"name": self.name, "uid": self.uid}, "spec": {"nodeName": node}}


def build_event(
    event_type: str,
    step: str,
    reference: ObjectReference,
    node: str = "",
    *,
    cause: BaseCloudEvent | None = None,
    seed: str = "",
    data: Mapping[str, Any] | None = None,
    flags: Iterable[str] = (),
    **extensions: str,
) -> CloudEvent:
    """Build an event that `step` emits about an object, and about a node if `node` is set.

    The id is derived from the step, the type, the object, the cause's source and id, and `seed`. `seed` distinguishes
    several events with the same cause. The id is random if there is neither a cause nor a seed. A node name that is not
    a valid attribute value appears only in the data.
    """
    node_attribute = _build_node_attribute(node)
    origin = f"{cause.get_source()}#{cause.get_id()}" if cause else ""
    identity = f"{step}|{event_type}|{reference.uid}|{origin}|{seed}"
    attributes: dict[str, Any] = {
        "id": str(uuid.uuid5(ID_NAMESPACE, identity) if origin or seed else uuid.uuid4()),
        "source": SOURCE_PREFIX + step,
        "type": event_type,
        "subject": reference.name,
        "time": datetime.now(timezone.utc),
        "datacontenttype": "application/json",
        reference.extension: reference.uid,
        "partitionkey": node_attribute or reference.uid,
        **({"node": node_attribute} if node_attribute else {}),
        **dict.fromkeys([*_list_default_flags(event_type), *flags], "true"),
        TRACEPARENT_EXTENSION: select_traceparent(cause, reference.uid),
        **extensions,
    }
    if cause:
        attributes["cause"] = cause.get_id()
        attributes |= get_replay_extensions(cause)
    references = {reference.extension: reference.as_data(), **({"node": node} if node else {})}
    return CloudEvent(attributes, {**references, **(data or {})})


def _build_node_attribute(node: str) -> str:
    """Return the node's name, "" if it is not a valid CloudEvents attribute value.

    A CRD's schema may allow any string in `spec.nodeName`, but receivers reject an event with an invalid attribute.
    """
    return "" if len(node) > MAX_NAME_CHARACTERS or INVALID_CHARACTERS.search(node) else node


def copy_with_added_data(event: BaseCloudEvent, data: Mapping[str, Any]) -> CloudEvent:
    """Return a copy of the event with these fields added to its data."""
    old_data = event.get_data()
    return CloudEvent(event.get_attributes(), {**(old_data if isinstance(old_data, dict) else {}), **data})


def _list_default_flags(event_type: str) -> list[str]:
    return [
        flag
        for flag, event_types in TYPES_BY_FLAG.items()
        if event_type in event_types and flag not in OPTIONAL_FLAGS.get(event_type, ())
    ]
