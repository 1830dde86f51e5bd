"""The extensions that mark an event as a replay: `replay`, which is the replay's id, and `dryrun`.

Functions process a marked event like any other, but send the replies to the client that replays it, never to a broker.
With `dryrun`, the API server persists none of the writes. Replies inherit the extensions. A reply to a replay therefore
does not continue the chain, even if a client posts the reply to a broker.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.http_binding import BadEvent

REPLAY_EXTENSION, DRY_RUN_EXTENSION = "replay", "dryrun"
DRY_RUN_ALL = "All"
"""The only valid value of `dryrun`, as in the API server's parameter `dryRun`."""


def get_replay_extensions(event: BaseCloudEvent) -> dict[str, str]:
    """Return the extensions that mark the event as a replay, {} if the event is not a replay."""
    marks = {name: event.get_extension(name) for name in (REPLAY_EXTENSION, DRY_RUN_EXTENSION)}
    return {name: str(value) for name, value in marks.items() if value is not None}


def is_replay(event: BaseCloudEvent) -> bool:
    """Return whether the event is a replay, posted only to see the replies; every dry run is a replay."""
    return bool(get_replay_extensions(event))


def is_dry_run(event: BaseCloudEvent) -> bool:
    """Return whether the event's writes must not be persisted. Raises `BadEvent` for an invalid value."""
    value = get_replay_extensions(event).get(DRY_RUN_EXTENSION)
    if value not in (None, DRY_RUN_ALL):
        raise BadEvent(f"extension {DRY_RUN_EXTENSION} is {value!r}: send {DRY_RUN_ALL!r}, or omit it")
    return value == DRY_RUN_ALL


def add_replay_extensions(event: BaseCloudEvent, replay_id: str, *, dry_run: bool) -> BaseCloudEvent:
    """Return the event with the extensions of the replay `replay_id`; the event's id stays unchanged."""
    marks = {REPLAY_EXTENSION: replay_id, **({DRY_RUN_EXTENSION: DRY_RUN_ALL} if dry_run else {})}
    return CloudEvent({**event.get_attributes(), **marks}, event.get_data())
