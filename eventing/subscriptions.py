"""Which functions subscribe to which events: the filters of our Triggers, for whoever has a journal and no cluster.

A test compares it with the manifests that every install has: what a component adds may be missing from a recording for
a reason. `record`, which subscribes to everything, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloudevents.core.base import BaseCloudEvent

from eventing import events

SUBSCRIPTIONS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("begin", {"type": events.RESOURCE_ADDED, "kind": "NodeMaintenance"}),
    ("begin", {"type": events.MAINTENANCE_FOUND}),
    ("cordon", {"type": events.MAINTENANCE_BEGUN}),
    ("cordon", {"type": events.NODE_DRIFTED}),
    ("taint", {"type": events.NODE_CORDONED}),
    ("evict", {"more": "true"}),
    ("status", {"progress": "true"}),
    ("restore", {"type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"}),
    ("restore", {"type": events.MAINTENANCE_ENDED}),
    ("guard", {"type": events.RESOURCE_UPDATED, "kind": "Node"}),
    ("guard", {"type": events.RESOURCE_DELETED, "kind": "Node"}),
    ("resync", {"type": events.TICK}),
)
"""Function and the attributes in its Trigger's filter, in the order of a maintenance."""


def subscribers(event: BaseCloudEvent) -> tuple[str, ...]:
    """The functions that an event is delivered to."""
    attributes = {name: str(value) for name, value in event.get_attributes().items()}
    return tuple(name for name, wanted in SUBSCRIPTIONS if wanted.items() <= attributes.items())
