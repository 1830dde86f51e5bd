"""What a function that looks must say, so that hints are taken together: one look at a time (design rule 8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from cloudevents.core.base import BaseCloudEvent

from functions.data import metadata_of
from kube.resource_versions import newest

Replies = list[BaseCloudEvent]
"""What one look answers."""
State = Mapping[str, str]
"""The versions of what a look has seen, by the names that they have in data."""


class Subject(NamedTuple):
    """What a look is at: looks at one place follow each other, and hints about one subject are absorbed by its look."""

    place: str
    subject: str


class Looking(Protocol):
    """What the functions that look differ in."""

    def subject(self, event: BaseCloudEvent) -> Subject:
        """What the event is a hint about. Raises `BadEvent` when it does not say."""

    def newest(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """One hint that is as new as all of these."""

    def state(self, replies: Replies) -> State:
        """The state that a look with these replies has seen, as hints speak of it."""

    def has_seen(self, state: State, hint: BaseCloudEvent) -> bool:
        """Whether a look that saw this state has seen all that the hint speaks of; else it is looked at."""

    def kept(self, replies: Replies) -> Replies:
        """What no later look says again of a look's replies, if there is no answer: the next one has it, too."""

    def merged(self, event: BaseCloudEvent, looks: Sequence[Replies], *, more: bool) -> Replies | None:
        """The answer to `event` after these looks, each with its replies.

        With `more` something has happened since the last one; None when the answer cannot say so.
        """


def _object_version(hint: BaseCloudEvent) -> str:
    return str(metadata_of(hint).get("resourceVersion") or "")


class LookingAtState:
    """Looks that answer with all that is to be done now, so that the last one's answer stands for all.

    `place` names what an event is a hint about.
    """

    def __init__(self, place: Callable[[BaseCloudEvent], str]) -> None:
        self._place = place

    def subject(self, event: BaseCloudEvent) -> Subject:
        """The place itself."""
        return Subject(self._place(event), "")

    def newest(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """The one with the newest object; of hints that carry none, the last that came."""
        latest = newest(_object_version(hint) for hint in hints)
        return next((hint for hint in hints if latest and _object_version(hint) == latest), hints[-1])

    def state(self, _replies: Replies) -> State:
        """None: each hint is looked at."""
        return {}

    def has_seen(self, _state: State, _hint: BaseCloudEvent) -> bool:
        """Each hint is looked at."""
        return False

    def kept(self, _replies: Replies) -> Replies:
        """Nothing: the next one says what is to be done then."""
        return []

    def merged(self, _event: BaseCloudEvent, looks: Sequence[Replies], *, more: bool) -> Replies | None:
        """The last answer. It cannot say that there is more to see: then it is looked again."""
        return None if more else looks[-1]


class LookingForChanges(LookingAtState):
    """Looks that answer with what each of them alone has found.

    What one has changed, or announced, or had the turn for, the next one does not say again.
    """

    def kept(self, replies: Replies) -> Replies:
        """All."""
        return replies

    def merged(self, event: BaseCloudEvent, looks: Sequence[Replies], *, more: bool) -> Replies | None:
        """All answers; of several of one type about the same object and node the last one."""
        if more:
            return super().merged(event, looks, more=more)
        return list({_about(reply): reply for replies in looks for reply in replies}.values())


def _about(reply: BaseCloudEvent) -> tuple[str, str | None, object, object]:
    return reply.get_type(), reply.get_subject(), reply.get_extension("maintenance"), reply.get_extension("node")
