"""Builders for CloudEvents as the event sources and the functions emit them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from eventing import events
from kube.paths import Object

_counter = itertools.count(1)


def build_resource_event(event_type: str, resource: Object, resource_kind: str = "NodeMaintenance") -> CloudEvent:
    """Build the event that ApiServerSource emits for an object in `mode: Resource` (X-4)."""
    return CloudEvent(
        {
            "id": f"hint-{next(_counter)}",
            "source": "https://kubernetes.example",
            "type": event_type,
            "datacontenttype": "application/json",
            "kind": resource_kind,
            "apiversion": resource.get("apiVersion", "v1"),
            "name": resource["metadata"]["name"],
            "namespace": "",
        },
        dict(resource),
    )


def build_added_event(maintenance: Object) -> CloudEvent:
    """Build the event for a created NodeMaintenance."""
    return build_resource_event(events.RESOURCE_ADDED, maintenance)


def build_updated_event(maintenance: Object) -> CloudEvent:
    """Build the event for an updated NodeMaintenance."""
    return build_resource_event(events.RESOURCE_UPDATED, maintenance)


def build_node_updated_event(node: Object) -> CloudEvent:
    """Build the event for an updated Node."""
    return build_resource_event(events.RESOURCE_UPDATED, node, "Node")


def build_node_deleted_event(node: Object) -> CloudEvent:
    """Build the event for a deleted Node."""
    return build_resource_event(events.RESOURCE_DELETED, node, "Node")


def build_tick() -> CloudEvent:
    """Build the PingSource event that starts `resync`."""
    return CloudEvent(
        {
            "id": f"tick-{next(_counter)}",
            "source": "/apis/v1/namespaces/node-maintenance/pingsources/resync",
            "type": events.TICK,
            "datacontenttype": "application/json",
        },
        {},
    )


def build_product_event(event_type: str, maintenance: Object, *, data: Mapping[str, Any] | None = None) -> CloudEvent:
    """Build an event as the product emits it, about a NodeMaintenance and its node."""
    node = maintenance["spec"]["nodeName"]
    return events.build_event(
        event_type,
        "test",
        events.ObjectReference.from_object(maintenance),
        node,
        seed=str(next(_counter)),
        data=data,
    )
