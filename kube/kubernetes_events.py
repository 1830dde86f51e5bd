"""Builds Kubernetes Events that `kubectl describe` shows on their object; all components use it. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime

from kube.paths import Object
from kube.times import timestamp
from kube.text_limits import shortened

LONGEST_NAME, LONGEST_MESSAGE = 236, 900
"""Maximum characters of the object's name in its Event's name, and of the message.

An Event's name has at most 253 characters; the usual limit of a message is 1024.
"""
NORMAL, WARNING = "Normal", "Warning"


def event_name(name: str, *identity: str) -> str:
    """Return the name of an Event about the object `name`; the same `identity` always gives the same name."""
    digest = hashlib.sha256("|".join(identity).encode(errors="backslashreplace")).hexdigest()[:16]
    return f"{name[:LONGEST_NAME].rstrip('-.')}.{digest}"


def event(
    name: str, namespace: str, involved: Mapping[str, str], kind: str, reason: str, message: str, now: datetime
) -> Object:
    """Build the Event `name` about the object `involved`; `kind` is `NORMAL` or `WARNING`."""
    moment = timestamp(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": dict(involved),
        "type": kind,
        "reason": reason,
        "message": shortened(message, LONGEST_MESSAGE),
        "source": {"component": "node-maintenance"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
