"""Creates Kubernetes Events for all components.

API errors are returned, not raised, since a failed Event must not fail the step that records it.
"""

from __future__ import annotations

from kube.client.api import Api
from kube.client.api_errors import ApiError, Conflict
from kube.paths import Object, build_events_path


async def record_event(api: Api, event: Object) -> ApiError | None:
    """Create an Event, and return the API error if that fails, else None.

    If an Event with the same name exists, it stays unchanged and the function returns None.
    """
    try:
        await api.create(build_events_path(event["metadata"]["namespace"]), event)
    except Conflict:
        return None
    except ApiError as error:
        return error
    return None
