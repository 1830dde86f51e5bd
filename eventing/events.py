"""The event vocabulary: every event type with its meaning and data, and the function that builds an event.

All events are CloudEvents 1.0 with JSON data. The project's own events carry these extensions:

* `maintenance`, `run`, `rule`, `target` or `round`: the uid of the object that the event is about.
* `node`: the node's name, if the event is about a node and the name is a valid attribute value.
* `partitionkey`: the node's name, otherwise that uid. Brokers that keep order use it.
* `cause`: the id of the event that triggered this one.
* `traceparent`: see `eventing.trace_context`.
* The replay marks of the triggering event, if it has any: see `eventing.replay_extensions`.

Their data is `{"maintenance": {apiVersion, name, uid}, "node": name}`, plus the fields that `MEANINGS` lists. Events
about a run, rule or target use that word as the key, and add the object's namespace.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import replay_extensions, trace_context
from eventing.object_extensions import SUBJECTS
from eventing.http_binding import NO_TEXT

# Changes of API objects, from ApiServerSource in `mode: Resource`: data is the whole object; the extensions are
# kind, apiversion, name and namespace.
RESOURCE_ADDED = "dev.knative.apiserver.resource.add"
RESOURCE_UPDATED = "dev.knative.apiserver.resource.update"
RESOURCE_DELETED = "dev.knative.apiserver.resource.delete"
# The same in `mode: Reference`: data is only a reference to the object.
REFERENCE_ADDED = "dev.knative.apiserver.ref.add"
REFERENCE_UPDATED = "dev.knative.apiserver.ref.update"
REFERENCE_DELETED = "dev.knative.apiserver.ref.delete"
# The tick of PingSource.
TICK = "dev.knative.sources.ping"

# This project's events, in the order of a maintenance.
MAINTENANCE_FOUND = "dev.nodemaintenance.maintenance.found"
MAINTENANCE_BEGUN = "dev.nodemaintenance.maintenance.begun"
NODE_DRIFTED = "dev.nodemaintenance.node.drifted"
NODE_CORDONED = "dev.nodemaintenance.node.cordoned"
NODE_TAINTED = "dev.nodemaintenance.node.tainted"
PODS_EVICTED = "dev.nodemaintenance.pods.evicted"
PODS_GONE = "dev.nodemaintenance.pods.gone"
PODS_CAME = "dev.nodemaintenance.pods.came"
BUDGET_OPENED = "dev.nodemaintenance.budget.opened"
LAUNCHERS_CHANGED = "dev.nodemaintenance.launchers.changed"
NODE_DRAINED = "dev.nodemaintenance.node.drained"
MAINTENANCE_FAILED = "dev.nodemaintenance.maintenance.failed"
MAINTENANCE_ENDED = "dev.nodemaintenance.maintenance.ended"
NODE_RESTORED = "dev.nodemaintenance.node.restored"

# Events of the upgrade mutex, in the order of a run.
RULE_FOUND = "dev.nodemaintenance.rule.found"
RULE_CHECKED = "dev.nodemaintenance.rule.checked"
TARGET_FOUND = "dev.nodemaintenance.target.found"
TARGET_CHECKED = "dev.nodemaintenance.target.checked"
RUN_FOUND = "dev.nodemaintenance.run.found"
RUN_VALIDATED = "dev.nodemaintenance.run.validated"
UPGRADE_FOUND = "dev.nodemaintenance.upgrade.found"
POOLS_CLAIMED = "dev.nodemaintenance.pools.claimed"
POOLS_PAUSED = "dev.nodemaintenance.pools.paused"
NODES_LABELLED = "dev.nodemaintenance.nodes.labelled"
POOLS_EDITED = "dev.nodemaintenance.pools.edited"
JOB_DUE = "dev.nodemaintenance.job.due"
NODE_CLEARED = "dev.nodemaintenance.node.cleared"
NODE_RELEASED = "dev.nodemaintenance.node.released"
NODE_UPGRADED = "dev.nodemaintenance.node.upgraded"
NODE_CLEANED = "dev.nodemaintenance.node.cleaned"
RUN_STOPPED = "dev.nodemaintenance.run.stopped"
RUN_COMPLETED = "dev.nodemaintenance.run.completed"
RUN_ENDED = "dev.nodemaintenance.run.ended"
RUN_FINISHED = "dev.nodemaintenance.run.finished"

# Event of the function that labels nodes with their CPU models and features.
LABELS_DUE = "dev.nodemaintenance.labels.due"

MEANINGS = {
    MAINTENANCE_FOUND: "a NodeMaintenance waits to begin (seen by resync, or its turn came when another one ended); "
    "data: begun, of one that has, and whose lease is to be renewed, or its metadata to be put back",
    MAINTENANCE_BEGUN: "finalizer, lease and pod snapshot are in place; data: totalpods, evictionPods, "
    "and as in pods.evicted podsVersion, maintenanceVersion, closed, left",
    NODE_DRIFTED: "a node under maintenance is not cordoned, not tainted or not labelled; data: message, again when it "
    "is done again for `evict`",
    NODE_CORDONED: "the node takes no new pods; data: again as before",
    NODE_TAINTED: "the node carries the maintenance taints; pods may be evicted now; data: again as before",
    PODS_EVICTED: "pods were evicted, or are blocked; data: evicted [{namespace, name, uid}], blocked [{namespace, "
    "name, uid, reason, budget, healthy, needed, allowsNone, message}], error, podsVersion, budgetsVersion, "
    "maintenanceVersion: the state of the NodeMaintenance that the step read, closed: so was the node then, left: the "
    "pods that were to leave; "
    "flagged `more` when others may go at once",
    PODS_GONE: "pods left a node under maintenance; data: podsVersion, the state in which they are gone; "
    "flagged `more` when it was the last one or others wait to be evicted, else `progress`",
    PODS_CAME: "pods that are to leave came to a node under maintenance; data: podsVersion, the state with them",
    BUDGET_OPENED: "a disruption budget admits an eviction again; data: budget (namespace/name), budgetsVersion, "
    "podsVersion; without that one when nobody has acted on it, and it is told again",
    LAUNCHERS_CHANGED: "launcher pods of virtual machines on a node under maintenance wait for something else, or for "
    "nothing",
    NODE_DRAINED: "a fresh list shows no pod left to evict; data: podsVersion, the state of which this is true, "
    "maintenanceVersion, closed, and evicted as in pods.evicted, of those that were answered behind their batch",
    MAINTENANCE_FAILED: "a step could not be done; data: step, error, begun as in the event that it answers",
    MAINTENANCE_ENDED: "a NodeMaintenance is deleted, or gone, and its node is not restored yet (seen by resync; by "
    "cordon or taint after their write; by begin, of one that was given its node)",
    NODE_RESTORED: "cordon, taints, lease and finalizer are off",
    RULE_FOUND: "a MutexRule is to be judged (seen by resync-runs)",
    RULE_CHECKED: "a MutexRule has become valid or invalid, or is gone",
    TARGET_FOUND: "a MutexTarget is to be judged, or its nodes are others (seen by resync-runs)",
    TARGET_CHECKED: "a MutexTarget has become valid or invalid, or is gone",
    RUN_FOUND: "a MutexRunConfig is to be judged (seen by resync-runs)",
    RUN_VALIDATED: "all that a MutexRunConfig names is there and valid, and it has no run under way",
    UPGRADE_FOUND: "the control plane is upgraded and a worker is not; data: version",
    POOLS_CLAIMED: "the pools are the run's, and it is recorded how they were",
    POOLS_PAUSED: "no pool of the targets upgrades a node",
    NODES_LABELLED: "each node of the run that is not released carries a label for each rule",
    POOLS_EDITED: "the canary takes whoever carries none of the labels, the pools of the targets whoever carries all",
    JOB_DUE: "a Job of a run is to be created, or has ended (seen by resync-runs)",
    NODE_CLEARED: "all Jobs before a node's upgrade are complete",
    NODE_RELEASED: "a node's labels are off, so that it is upgraded",
    NODE_UPGRADED: "a released node carries the wanted version",
    NODE_CLEANED: "a node is done: its Jobs behind the upgrade are complete, or it is gone",
    RUN_STOPPED: "a run waits for somebody to resume it; data: error",
    RUN_COMPLETED: "all nodes of a run are done",
    RUN_ENDED: "a MutexRunConfig is deleted, or has no upgrade any more, and its pools are still claimed, or `node` "
    "still carries its labels",
    RUN_FINISHED: "pools and nodes are as they were before the run",
    LABELS_DUE: "a round over all nodes, for the labels of their CPUs, goes on with the next ones; data: after, "
    'began: by which HyperConverged, and its generation, "" for another beginning',
}
"""Event type → its meaning and data. Lists every type that this project emits to the broker."""

# Each function posts its attempts to `record` directly, without the broker; data: attempts.
ATTEMPTS_MADE = "dev.nodemaintenance.attempts.made"

FLAGS = {
    "progress": (MAINTENANCE_BEGUN, PODS_EVICTED, PODS_GONE, NODE_DRAINED, MAINTENANCE_FAILED),
    "more": (NODE_TAINTED, PODS_GONE, PODS_CAME, BUDGET_OPENED, LAUNCHERS_CHANGED, PODS_EVICTED),
    "job": (POOLS_EDITED, JOB_DUE, NODE_UPGRADED, NODE_CLEANED),
    "survey": (RULE_CHECKED, TARGET_CHECKED, RUN_FINISHED),
}
"""Extensions that are "true" on events of these types, so that one Trigger can select several types.

With `progress` the event may change the status, and with `more` pods may be ready for eviction. With `job` a Job may
have to be created, and with `survey` a run may be able to continue. A broker evaluates every Trigger for every event,
and some brokers run a process per Trigger. One Trigger per flag is therefore cheaper than one per type.
"""
CHOSEN = {PODS_EVICTED: ("more",), PODS_GONE: ("progress", "more")}
"""Event type → flags that are set only if the emitter passes them to `event`."""

SOURCE = "https://nodemaintenance.dev/"
LONGEST_NAME = 253
"""Maximum length of an object's name, in characters."""
NAMESPACE = uuid.UUID("6b0e7f0a-3a6e-5c1b-9c39-0e5b8f1f6a4d")
"""Namespace of the version 5 UUIDs that serve as event ids.

An id derives from what triggered the event, so that a duplicate has the same id.
"""


@dataclass(frozen=True)
class Reference:
    """Reference to the object that an event is about: enough to read it again and to detect a replacement."""

    api_version: str
    name: str
    uid: str
    namespace: str = ""
    kind: str = "NodeMaintenance"

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Reference:
        """Build the reference to an API object."""
        metadata, kind = item["metadata"], item.get("kind", "NodeMaintenance")
        return cls(item["apiVersion"], metadata["name"], metadata["uid"], metadata.get("namespace", ""), kind)

    @property
    def word(self) -> str:
        """Return the name that events use for this kind of object, as a data key and as an extension."""
        return SUBJECTS[self.kind]

    def as_data(self) -> dict[str, str]:
        """Return the reference as it appears in event data."""
        known = {"apiVersion": self.api_version, "name": self.name, "uid": self.uid}
        return {**known, "namespace": self.namespace} if self.namespace else known

    def as_object(self, node: str) -> dict[str, Any]:
        """Build a minimal NodeMaintenance for `node` in place of one that no longer exists."""
        kind = {"apiVersion": self.api_version, "kind": "NodeMaintenance"}
        return {**kind, "metadata": {"name": self.name, "uid": self.uid}, "spec": {"nodeName": node}}


def event(
    kind: str,
    step: str,
    about: Reference,
    node: str = "",
    *,
    cause: BaseCloudEvent | None = None,
    seed: str = "",
    data: Mapping[str, Any] | None = None,
    flags: Iterable[str] = (),
    **extensions: str,
) -> CloudEvent:
    """Build an event of type `kind` about an object, and about a node if `node` is set, emitted by `step`.

    The id derives from step, type, object, the cause's source and id, and `seed`, which distinguishes several events of
    one cause. The same cause therefore gives the same id. Without cause and seed the id is random. A node name that is
    not a valid attribute value is only in the data.
    """
    known = _as_attribute(node)
    origin = f"{cause.get_source()}#{cause.get_id()}" if cause else ""
    identity = f"{step}|{kind}|{about.uid}|{origin}|{seed}"
    attributes: dict[str, Any] = {
        "id": str(uuid.uuid5(NAMESPACE, identity) if origin or seed else uuid.uuid4()),
        "source": SOURCE + step,
        "type": kind,
        "subject": about.name,
        "time": datetime.now(timezone.utc),
        "datacontenttype": "application/json",
        about.word: about.uid,
        "partitionkey": known or about.uid,
        **({"node": known} if known else {}),
        **dict.fromkeys([*_usual_flags(kind), *flags], "true"),
        trace_context.EXTENSION: trace_context.emitted(cause, about.uid),
        **extensions,
    }
    if cause:
        attributes["cause"] = cause.get_id()
        attributes |= replay_extensions.of(cause)
    named = {about.word: about.as_data(), **({"node": node} if node else {})}
    return CloudEvent(attributes, {**named, **(data or {})})


def _as_attribute(node: str) -> str:
    """Return the node's name, or "" if it is not a valid attribute value.

    A CRD schema may allow any string in `spec.nodeName`, but receivers reject an event with an invalid attribute.
    """
    return "" if len(node) > LONGEST_NAME or NO_TEXT.search(node) else node


def with_data(event: BaseCloudEvent, data: Mapping[str, Any]) -> CloudEvent:
    """Return the event with these entries merged into its data."""
    before = event.get_data()
    return CloudEvent(event.get_attributes(), {**(before if isinstance(before, dict) else {}), **data})


def _usual_flags(kind: str) -> list[str]:
    return [flag for flag, kinds in FLAGS.items() if kind in kinds and flag not in CHOSEN.get(kind, ())]
