"""Helper that builds resync ticks, so that tests need not wait for the PingSource."""

from __future__ import annotations

import uuid

from cloudevents.core.v1.event import CloudEvent

from eventing import events


def build_tick() -> CloudEvent:
    """Build a resync tick, like the event that PingSource sends every 15 seconds."""
    attributes = {"type": events.TICK, "source": "/tests/e2e", "datacontenttype": "application/json"}
    return CloudEvent({**attributes, "id": str(uuid.uuid4())}, {})
