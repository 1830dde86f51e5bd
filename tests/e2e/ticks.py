"""The tick, when a test does not want to wait for it."""

from __future__ import annotations

import uuid

from cloudevents.core.v1.event import CloudEvent

from eventing import events


def tick() -> CloudEvent:
    """What PingSource says every 15 seconds."""
    said = {"type": events.TICK, "source": "/tests/e2e", "datacontenttype": "application/json"}
    return CloudEvent({**said, "id": str(uuid.uuid4())}, {})
