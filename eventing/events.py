"""The vocabulary: every event type with its meaning and data, and the one way to make an event from its cause.

All are CloudEvents 1.0 with JSON data. Ours carry the extensions `node`, `maintenance` (uid), `partitionkey` (the
node's name: order per node where the broker keeps order), `cause` (id of the event it answers), `traceparent`
(`eventing.traces`) and, when the cause has them, the marks of a replay (`eventing.marks`). Their data is
`{"maintenance": {apiVersion, name, uid}, "node": name}` plus what is named below.
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
BUDGET_OPENED = "dev.nodemaintenance.budget.opened"
NODE_DRAINED = "dev.nodemaintenance.node.drained"
MAINTENANCE_FAILED = "dev.nodemaintenance.maintenance.failed"
MAINTENANCE_ENDED = "dev.nodemaintenance.maintenance.ended"
NODE_RESTORED = "dev.nodemaintenance.node.restored"

MEANINGS = {
    MAINTENANCE_FOUND: "a NodeMaintenance waits to begin (seen by resync, or its turn came when another one ended)",
    MAINTENANCE_BEGUN: "finalizer, lease and pod snapshot are in place; data: totalpods, evictionPods",
    NODE_DRIFTED: "a node under maintenance is not cordoned, not tainted or not labelled; data: message, again when it "
    "is done again for `evict`",
    NODE_CORDONED: "the node takes no new pods; data: again as before",
    NODE_TAINTED: "the node carries the maintenance taints; pods may be evicted now; data: again as before",
    PODS_EVICTED: "a batch was evicted; data: evicted [{namespace, name, uid}], blocked [{namespace, name, uid, "
    "reason, budget, healthy, needed, allowsNone, message}], error, podsVersion; "
    "flagged `more` when others may go at once",
    PODS_GONE: "pods left a node under maintenance; data: podsVersion, the state in which they are gone; "
    "flagged `more` when it was the last one or others wait to be evicted, else `progress`",
    BUDGET_OPENED: "a disruption budget admits an eviction again; data: budget (namespace/name), budgetsVersion",
    NODE_DRAINED: "a fresh list shows no pod left to evict; data: podsVersion, the state of which this is true",
    MAINTENANCE_FAILED: "a step could not be done; data: step, error",
    MAINTENANCE_ENDED: "a NodeMaintenance is deleted, or gone, and its node is not restored yet (seen by resync; by "
    "cordon or taint after their write)",
    NODE_RESTORED: "cordon, taints, lease and finalizer are off",
}
"""Type → its meaning. Everything we emit is here."""

# Published by each function to `record`, past the broker: its attempts; data: attempts.
ATTEMPTS_MADE = "dev.nodemaintenance.attempts.made"

FLAGS = {
    "progress": (MAINTENANCE_BEGUN, PODS_EVICTED, PODS_GONE, NODE_DRAINED, MAINTENANCE_FAILED),
    "more": (NODE_TAINTED, PODS_GONE, BUDGET_OPENED, PODS_EVICTED),
}
"""Extensions, "true" on events of these types: `progress` concerns the status, with `more` pods may be evicted.

Each broker asks every Trigger of every event, some with a process each: one Trigger for a flag is cheaper than one for
each type.
"""
CHOSEN = {PODS_EVICTED: ("more",), PODS_GONE: ("progress", "more")}
"""Flags that an event of that type carries only when its emitter sets them."""

SOURCE = "https://nodemaintenance.dev/"
NAMESPACE = uuid.UUID("6b0e7f0a-3a6e-5c1b-9c39-0e5b8f1f6a4d")
"""Ids are UUIDs of version 5 in this namespace, made of what caused the event: a duplicate has the same id."""


@dataclass(frozen=True)
class Reference:
    """One NodeMaintenance object: enough to read it again and to know whether it is still the same one."""

    api_version: str
    name: str
    uid: str

    @classmethod
    def of(cls, maintenance: Mapping[str, Any]) -> Reference:
        """The reference to a whole NodeMaintenance object."""
        metadata = maintenance["metadata"]
        return cls(maintenance["apiVersion"], metadata["name"], metadata["uid"])

    def as_data(self) -> dict[str, str]:
        """The form that travels in event data."""
        return {"apiVersion": self.api_version, "name": self.name, "uid": self.uid}

    def as_object(self, node: str) -> dict[str, Any]:
        """What is left of the object when it is gone: whose it was, and that it was about `node`."""
        kind = {"apiVersion": self.api_version, "kind": "NodeMaintenance"}
        return {**kind, "metadata": {"name": self.name, "uid": self.uid}, "spec": {"nodeName": node}}


def event(
    kind: str,
    step: str,
    maintenance: Reference,
    node: str,
    *,
    cause: BaseCloudEvent | None = None,
    seed: str = "",
    data: Mapping[str, Any] | None = None,
    flags: Iterable[str] = (),
    **extensions: str,
) -> CloudEvent:
    """An event of type `kind` about `maintenance` on `node`, emitted by `step`.

    The id is made of step, type, maintenance, the cause's source and id, and `seed` (what else makes it distinct), so
    that the same cause gives the same id. Without cause and seed the id is random.
    """
    origin = f"{cause.get_source()}#{cause.get_id()}" if cause else ""
    identity = f"{step}|{kind}|{maintenance.uid}|{origin}|{seed}"
    attributes: dict[str, Any] = {
        "id": str(uuid.uuid5(NAMESPACE, identity) if origin or seed else uuid.uuid4()),
        "source": SOURCE + step,
        "type": kind,
        "subject": maintenance.name,
        "time": datetime.now(timezone.utc),
        "datacontenttype": "application/json",
        "node": node,
        "maintenance": maintenance.uid,
        "partitionkey": node,
        **dict.fromkeys([*_usual_flags(kind), *flags], "true"),
        traces.EXTENSION: traces.emitted(cause, maintenance.uid),
        **extensions,
    }
    if cause:
        attributes["cause"] = cause.get_id()
        attributes |= marks.of(cause)
    return CloudEvent(attributes, {"maintenance": maintenance.as_data(), "node": node, **(data or {})})


def with_data(event: BaseCloudEvent, data: Mapping[str, Any]) -> CloudEvent:
    """The same event with these entries in its data."""
    before = event.get_data()
    return CloudEvent(event.get_attributes(), {**(before if isinstance(before, dict) else {}), **data})


def _usual_flags(kind: str) -> list[str]:
    return [flag for flag, kinds in FLAGS.items() if kind in kinds and flag not in CHOSEN.get(kind, ())]
