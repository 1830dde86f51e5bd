"""The extensions that mark an event as a replay: `replay`, the replay's id, and `dryrun`.

A marked event is processed like any other, but the replies go to whoever replays it and never to a broker; with
`dryrun` the API server keeps none of its writes. Replies inherit the marks, so that one that reaches a broker by some
other way begins nothing either.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.wire import BadEvent

REPLAY, DRY_RUN = "replay", "dryrun"
ALL = "All"
"""The one value of `dryrun`, as of the API server's own parameter `dryRun`."""


def of(event: BaseCloudEvent) -> dict[str, str]:
    """The marks that the event carries, {} for a real one."""
    marks = {name: event.get_extension(name) for name in (REPLAY, DRY_RUN)}
    return {name: str(value) for name, value in marks.items() if value is not None}


def is_replay(event: BaseCloudEvent) -> bool:
    """Whether the event is posted again to see the replies; a dry run is never anything else."""
    return bool(of(event))


def is_dry_run(event: BaseCloudEvent) -> bool:
    """Whether its writes must not be kept. Raises `BadEvent` for a value that we do not know."""
    value = of(event).get(DRY_RUN)
    if value not in (None, ALL):
        raise BadEvent(f"extension {DRY_RUN} is {value!r}; send {ALL!r}, or leave it out")
    return value == ALL


def marked(event: BaseCloudEvent, replay_id: str, *, dry_run: bool) -> BaseCloudEvent:
    """The same event, its own id kept, as part of the replay of that id."""
    marks = {REPLAY: replay_id, **({DRY_RUN: ALL} if dry_run else {})}
    return CloudEvent({**event.get_attributes(), **marks}, event.get_data())
