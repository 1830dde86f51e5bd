"""A Kubernetes Event, as `kubectl describe` finds it at its object: what all wings announce by. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime

from kube.paths import Object
from kube.times import timestamp
from kube.words import shortened

LONGEST_NAME, LONGEST_MESSAGE = 236, 900
"""Characters of the object's name in that of its Event, which has 253; and of the message, for which 1024 is usual."""
NORMAL, WARNING = "Normal", "Warning"


def event_name(name: str, *identity: str) -> str:
    """Name of the Event about the object of this name that `identity` tells from its others: the same each time."""
    digest = hashlib.sha256("|".join(identity).encode(errors="backslashreplace")).hexdigest()[:16]
    return f"{name[:LONGEST_NAME].rstrip('-.')}.{digest}"


def event(
    name: str, namespace: str, involved: Mapping[str, str], kind: str, reason: str, message: str, now: datetime
) -> Object:
    """The Event of this name about the object `involved`; `kind` is `NORMAL` or `WARNING`."""
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
