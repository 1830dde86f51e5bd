"""The vocabulary: every event type with its meaning and data, and the one way to make an event from its cause.

All are CloudEvents 1.0 with JSON data. Ours carry the extensions `node` where they are about one whose name can be an
attribute, `maintenance`, `run`, `rule`, `target` or `round` (the uid of what they are about), `partitionkey` (the
node's name, or that uid: order where the broker keeps order), `cause` (id of the event it answers), `traceparent`
(`eventing.traces`) and, when the cause has them, the marks of a replay (`eventing.marks`). Their data is
`{"maintenance": {apiVersion, name, uid}, "node": name}`, of a run, rule or target that word with its namespace, plus
what is named below.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import marks, traces
from eventing.subjects import SUBJECTS
from eventing.wire import NO_TEXT

# Changes in the API server, through ApiServerSource in `mode: Resource`: data is the whole object; extensions
# kind, apiversion, name, namespace.
RESOURCE_ADDED = "dev.knative.apiserver.resource.add"
RESOURCE_UPDATED = "dev.knative.apiserver.resource.update"
RESOURCE_DELETED = "dev.knative.apiserver.resource.delete"
# The same in `mode: Reference`: data names the object, and has nothing of what is in it.
REFERENCE_ADDED = "dev.knative.apiserver.ref.add"
REFERENCE_UPDATED = "dev.knative.apiserver.ref.update"
REFERENCE_DELETED = "dev.knative.apiserver.ref.delete"
# The tick of PingSource.
TICK = "dev.knative.sources.ping"

# Ours, in the order of a maintenance.
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

# Those of the upgrade mutex, in the order of a run.
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

# Of the labels that tell which CPUs nodes have.
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
"""Type → its meaning. Everything we emit is here."""

# Published by each function to `record`, past the broker: its attempts; data: attempts.
ATTEMPTS_MADE = "dev.nodemaintenance.attempts.made"

FLAGS = {
    "progress": (MAINTENANCE_BEGUN, PODS_EVICTED, PODS_GONE, NODE_DRAINED, MAINTENANCE_FAILED),
    "more": (NODE_TAINTED, PODS_GONE, PODS_CAME, BUDGET_OPENED, LAUNCHERS_CHANGED, PODS_EVICTED),
    "job": (POOLS_EDITED, JOB_DUE, NODE_UPGRADED, NODE_CLEANED),
    "survey": (RULE_CHECKED, TARGET_CHECKED, RUN_FINISHED),
}
"""Extensions, "true" on events of these types: `progress` concerns the status, with `more` pods may be evicted; with
`job` a Job may be created, with `survey` some run may go on.

Each broker asks every Trigger of every event, some with a process each: one Trigger for a flag is cheaper than one for
each type.
"""
CHOSEN = {PODS_EVICTED: ("more",), PODS_GONE: ("progress", "more")}
"""Flags that an event of that type carries only when its emitter sets them."""

SOURCE = "https://nodemaintenance.dev/"
LONGEST_NAME = 253
"""Characters of an object's name."""
NAMESPACE = uuid.UUID("6b0e7f0a-3a6e-5c1b-9c39-0e5b8f1f6a4d")
"""Ids are UUIDs of version 5 in this namespace, made of what caused the event: a duplicate has the same id."""


@dataclass(frozen=True)
class Reference:
    """One object that events are about: enough to read it again and to know whether it is still the same one."""

    api_version: str
    name: str
    uid: str
    namespace: str = ""
    kind: str = "NodeMaintenance"

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Reference:
        """The reference to a whole object."""
        metadata, kind = item["metadata"], item.get("kind", "NodeMaintenance")
        return cls(item["apiVersion"], metadata["name"], metadata["uid"], metadata.get("namespace", ""), kind)

    @property
    def word(self) -> str:
        """What an event calls it, in its data and as an extension."""
        return SUBJECTS[self.kind]

    def as_data(self) -> dict[str, str]:
        """The form that travels in event data."""
        known = {"apiVersion": self.api_version, "name": self.name, "uid": self.uid}
        return {**known, "namespace": self.namespace} if self.namespace else known

    def as_object(self, node: str) -> dict[str, Any]:
        """What is left of the object when it is gone: whose it was, and that it was about `node`."""
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
    """An event of type `kind` about an object, and a node if it is about one, emitted by `step`.

    The id is made of step, type, object, the cause's source and id, and `seed` (what else makes it distinct), so
    that the same cause gives the same id. Without cause and seed the id is random. A node's name that can be no
    attribute is in the data alone.
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
        traces.EXTENSION: traces.emitted(cause, about.uid),
        **extensions,
    }
    if cause:
        attributes["cause"] = cause.get_id()
        attributes |= marks.of(cause)
    named = {about.word: about.as_data(), **({"node": node} if node else {})}
    return CloudEvent(attributes, {**named, **(data or {})})


def _as_attribute(node: str) -> str:
    """The name, "" where whoever reads the event would refuse it: a schema may let anything into `spec.nodeName`."""
    return "" if len(node) > LONGEST_NAME or NO_TEXT.search(node) else node


def with_data(event: BaseCloudEvent, data: Mapping[str, Any]) -> CloudEvent:
    """The same event with these entries in its data."""
    before = event.get_data()
    return CloudEvent(event.get_attributes(), {**(before if isinstance(before, dict) else {}), **data})


def _usual_flags(kind: str) -> list[str]:
    return [flag for flag, kinds in FLAGS.items() if kind in kinds and flag not in CHOSEN.get(kind, ())]
