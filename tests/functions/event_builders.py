"""Builders of events as the event sources and the functions emit them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from eventing import events
from kube.paths import Object

_numbers = itertools.count(1)


def resource(kind: str, item: Object, of: str = "NodeMaintenance") -> CloudEvent:
    """Build the event that ApiServerSource emits for an object in `mode: Resource` (X-4)."""
    return CloudEvent(
        {
            "id": f"hint-{next(_numbers)}",
            "source": "https://kubernetes.example",
            "type": kind,
            "datacontenttype": "application/json",
            "kind": of,
            "apiversion": item.get("apiVersion", "v1"),
            "name": item["metadata"]["name"],
            "namespace": "",
        },
        dict(item),
    )


def added(maintenance: Object) -> CloudEvent:
    """Build the event for a created NodeMaintenance."""
    return resource(events.RESOURCE_ADDED, maintenance)


def updated(maintenance: Object) -> CloudEvent:
    """Build the event for an updated NodeMaintenance."""
    return resource(events.RESOURCE_UPDATED, maintenance)


def node_updated(node: Object) -> CloudEvent:
    """Build the event for an updated Node."""
    return resource(events.RESOURCE_UPDATED, node, "Node")


def node_deleted(node: Object) -> CloudEvent:
    """Build the event for a deleted Node."""
    return resource(events.RESOURCE_DELETED, node, "Node")


def tick() -> CloudEvent:
    """Build the PingSource event that starts `resync`."""
    return CloudEvent(
        {
            "id": f"tick-{next(_numbers)}",
            "source": "/apis/v1/namespaces/node-maintenance/pingsources/resync",
            "type": events.TICK,
            "datacontenttype": "application/json",
        },
        {},
    )


def said(kind: str, maintenance: Object, *, data: Mapping[str, Any] | None = None) -> CloudEvent:
    """Build an event of the product about a NodeMaintenance and the node that it names."""
    node = maintenance["spec"]["nodeName"]
    return events.event(
        kind,
        "test",
        events.Reference.of(maintenance),
        node,
        seed=str(next(_numbers)),
        data=data,
    )
