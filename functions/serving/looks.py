"""One look at a time: a hint that comes while a function looks at the same subject makes it look once more (rule 8).

The hint is answered at once; what it speaks of is seen by the look that follows. A look that crashes loses no hint: its
own event is delivered again, and the look at that one is newer than all that was absorbed.

A hint that comes behind the look which has seen all that it speaks of is answered, too, and nobody looks: a broker that
keeps order brings those that came meanwhile one by one. Not so the event of a look itself: its answer may be lost, and
while that look is under way, it is delivered once more later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from cloudevents.core.base import BaseCloudEvent

from eventing.wire import BadEvent
from functions.failures import Busy, Retry
from functions.hints import Looking, Replies, State, Subject
from functions.newest import Newest
from kube.door.deadline import has_time, seconds_left

T = TypeVar("T")
KEPT = 1000
"""Subjects of which the last look is known, and what it found."""
LOOKS = 2
"""In one request; after these the answer says that there is more to see, where it can."""
MOST_LOOKS = 4
"""In one request, where the answer cannot say so: what comes behind the last of these is delivered again."""
LOOK_SECONDS = 0.7
"""A look that has less time than this gets nothing done; the answer asks for one that has, where it can."""


class Seen(NamedTuple):
    """The event that a look began with, by source and id, and the state that it has seen."""

    event: tuple[str, str]
    state: State


class Look:
    """A look that is under way, or waits for its place, and the hints that it has absorbed."""

    def __init__(self, subject: Subject, event: BaseCloudEvent) -> None:
        self.subject = subject
        self.key = _key(event)
        self.hints: list[BaseCloudEvent] = []
        self.is_last = False


class Looks:
    """All looks of one function in a process. Safe between threads."""

    def __init__(self, rule: Looking) -> None:
        self._rule = rule
        self._changed = threading.Condition()
        self._under_way: dict[Subject, Look] = {}
        self._places: set[str] = set()
        self._seen = Newest[Subject, Seen](KEPT)
        self._untold = Newest[Subject, Replies](KEPT)

    def look(self, event: BaseCloudEvent, once: Callable[[BaseCloudEvent], Replies]) -> Replies:
        """The answer to a hint: none when a look absorbed it or has seen it, else that of one look or several.

        Raises `Retry` when the place is busy for too long, or the looks end without an answer.
        """
        look = self._begin(self._rule.subject(event), event)
        if look is None:
            return []
        try:
            replies = self._replies(look, event, once)
            self._note(self._seen, look.subject, Seen(_key(event), self._rule.state(replies)))
            return replies
        finally:
            self._end(look)

    def _replies(self, look: Look, event: BaseCloudEvent, once: Callable[[BaseCloudEvent], Replies]) -> Replies:
        """The answer. What looks have changed that end without one is told by the next look at the subject."""
        untold, looks = self._untold.pop(look.subject, []), list[Replies]()
        is_told = False
        try:
            told = self._looked(look, event, once, looks)
            is_told = True
        finally:
            if not is_told and (kept := [*untold, *(one for found in looks for one in self._rule.kept(found))]):
                self._note(self._untold, look.subject, kept)
        return (self._rule.merged(event, [untold, told], more=False) or []) if untold else told

    def _looked(
        self, look: Look, event: BaseCloudEvent, once: Callable[[BaseCloudEvent], Replies], looks: list[Replies]
    ) -> Replies:
        rule = self._rule
        looks.append(once(event))
        while hints := self._absorbed(look, is_last=self._is_last(event, looks)):
            enough = rule.merged(event, looks, more=True)
            if enough is not None and (len(looks) >= LOOKS or not has_time(LOOK_SECONDS)):
                return enough
            try:
                looks.append(once(rule.newest(hints)))
            except (Retry, BadEvent) as error:
                answers = (rule.merged(event, looks[:count], more=True) for count in range(len(looks), 0, -1))
                told = next((answer for answer in answers if answer is not None), None)
                if told is None:
                    raise Retry(f"the look behind it did not end: {error}") from error
                return told
        return rule.merged(event, looks, more=False) or []

    def _is_last(self, event: BaseCloudEvent, looks: list[Replies]) -> bool:
        """Whether the look behind these is the last one: it cannot say that there is more to see, and there are many by
        then, or there is hardly time for it."""
        ends = len(looks) + 1 >= MOST_LOOKS or not has_time(LOOK_SECONDS)
        return ends and self._rule.merged(event, looks, more=True) is None

    def _begin(self, subject: Subject, hint: BaseCloudEvent) -> Look | None:
        """The caller's look, as soon as its place is free; None when another one has absorbed the hint, or seen it.

        Raises `Busy` when the place is taken for too long, behind the last look, and for an event whose own look is
        under way: whoever delivers it again will not have that look's answer, which may hold the next step.
        """
        patience = seconds_left()
        with self._changed:
            if self._has_seen(subject, hint):
                return None
            if (other := self._under_way.get(subject)) is not None:
                if other.key == _key(hint):
                    raise Busy("its own look is under way")
                if other.is_last:
                    raise Busy("the look that is under way is the last one that its event makes")
                other.hints.append(hint)
                return None
            look = self._under_way[subject] = Look(subject, hint)
            if not self._changed.wait_for(lambda: subject.place not in self._places, patience):
                del self._under_way[subject]
                raise Busy(f"another look at {subject.place} takes its time")
            self._places.add(subject.place)
            return look

    def _has_seen(self, subject: Subject, hint: BaseCloudEvent) -> bool:
        seen = self._seen.get(subject)
        return seen is not None and seen.event != _key(hint) and self._rule.has_seen(seen.state, hint)

    def _note(self, known: Newest[Subject, T], subject: Subject, value: T) -> None:
        """Know this of a subject; of too many, the oldest is forgotten."""
        with self._changed:
            known[subject] = value

    def _absorbed(self, look: Look, *, is_last: bool) -> list[BaseCloudEvent]:
        """The hints that came since; without one the look ends in the same breath, so that none is lost between.

        With `is_last` no other is absorbed: whoever delivers it does so again, behind this look.
        """
        with self._changed:
            hints, look.hints, look.is_last = look.hints, [], is_last
            if not hints:
                self._leave(look)
            return hints

    def _end(self, look: Look) -> None:
        with self._changed:
            self._leave(look)

    def _leave(self, look: Look) -> None:
        """Make room for the next look, once."""
        if self._under_way.get(look.subject) is look:
            del self._under_way[look.subject]
            self._places.discard(look.subject.place)
            self._changed.notify_all()


def _key(event: BaseCloudEvent) -> tuple[str, str]:
    return event.get_source(), event.get_id()
