"""Strategies for coalescing hints, so that only one pass at a time runs per subject (design rule 8).

A hint is an event that reports only that something may have changed. A pass is one execution of a function: it reads
the current state and does what can be done now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from cloudevents.core.base import BaseCloudEvent

from functions.event_data import metadata_of
from kube.resource_versions import newest

Replies = list[BaseCloudEvent]
"""The events that one pass returns."""
State = Mapping[str, str]
"""The resourceVersions that a pass has seen, by their field names in event data."""


class Subject(NamedTuple):
    """Key of a pass: passes with the same `place` run one after another, and hints with the same key share a pass."""

    place: str
    subject: str


class Looking(Protocol):
    """Strategy that defines how a function's hints coalesce and how the replies of its passes are merged."""

    def subject(self, event: BaseCloudEvent) -> Subject:
        """Return the key of the pass that the event requires. Raises `BadEvent` if the event does not contain it."""

    def newest(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """Return one hint that is at least as new as each of these hints."""

    def state(self, replies: Replies) -> State:
        """Return the state that a pass with these replies has seen, with the field names that hints use."""

    def has_seen(self, state: State, hint: BaseCloudEvent) -> bool:
        """Return whether a pass that saw this state covers all that the hint reports; if not, the hint needs a pass."""

    def kept(self, replies: Replies) -> Replies:
        """Return those replies of a pass that no later pass would repeat.

        If the request fails before they are sent, the next answer includes them.
        """

    def merged(self, event: BaseCloudEvent, looks: Sequence[Replies], *, more: bool) -> Replies | None:
        """Return the answer to `event` after these passes, given the replies of each.

        If `more` is true, further hints have arrived since the last pass; returns None if no answer can express that.
        """


def _object_version(hint: BaseCloudEvent) -> str:
    return str(metadata_of(hint).get("resourceVersion") or "")


class LookingAtState:
    """Strategy for passes that return everything that is due, so that the last answer replaces all earlier ones.

    `place` maps an event to the name of what its pass reads.
    """

    def __init__(self, place: Callable[[BaseCloudEvent], str]) -> None:
        self._place = place

    def subject(self, event: BaseCloudEvent) -> Subject:
        """Return a key that consists of the event's place only."""
        return Subject(self._place(event), "")

    def newest(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """Return the hint with the newest object; if no hint carries an object, the last hint received."""
        latest = newest(_object_version(hint) for hint in hints)
        return next((hint for hint in hints if latest and _object_version(hint) == latest), hints[-1])

    def state(self, _replies: Replies) -> State:
        """Return an empty state: every hint needs a pass."""
        return {}

    def has_seen(self, _state: State, _hint: BaseCloudEvent) -> bool:
        """Return False: every hint needs a pass."""
        return False

    def kept(self, _replies: Replies) -> Replies:
        """Return no replies: the next pass returns what is due then."""
        return []

    def merged(self, _event: BaseCloudEvent, looks: Sequence[Replies], *, more: bool) -> Replies | None:
        """Return the last answer, or None if `more` is true, since the answer cannot request another pass."""
        return None if more else looks[-1]


class LookingForChanges(LookingAtState):
    """Strategy for passes that each return only what that pass itself found.

    A later pass does not repeat what an earlier one changed, recorded as an Event, or selected by round robin.
    """

    def kept(self, replies: Replies) -> Replies:
        """Return all replies: no later pass repeats them."""
        return replies

    def merged(self, event: BaseCloudEvent, looks: Sequence[Replies], *, more: bool) -> Replies | None:
        """Return all replies; of several with the same type, object and node, only the last."""
        if more:
            return super().merged(event, looks, more=more)
        return list({_about(reply): reply for replies in looks for reply in replies}.values())


def _about(reply: BaseCloudEvent) -> tuple[str, str | None, object, object]:
    return reply.get_type(), reply.get_subject(), reply.get_extension("maintenance"), reply.get_extension("node")
