"""Writes a Kubernetes Event, for every wing. A step is worth more than an Event: errors are given, not raised."""

from __future__ import annotations

from kube.door.api import Api
from kube.door.api_errors import ApiError, Conflict
from kube.paths import Object, events_path


async def refusal(api: Api, event: Object) -> ApiError | None:
    """Create an Event; one of its name that is there stays. Why it could not be written, None when it is there."""
    try:
        await api.create(events_path(event["metadata"]["namespace"]), event)
    except Conflict:
        return None
    except ApiError as error:
        return error
    return None
