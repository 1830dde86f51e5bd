"""Work queue that runs one pass at a time: a hint that arrives during a pass for its subject triggers another (rule 8).

The hint is answered at once, and the next pass sees the state to which it refers. A crash of a pass loses no hint: the
pass's own event is redelivered, and that pass sees newer state than all coalesced hints.

A hint may arrive after a pass that has already seen its state. It is answered without another pass, because a broker
that keeps order delivers late hints one by one. The event that started a pass is an exception, because its response may
have been lost. While its pass is in progress, it is rejected and delivered again later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from cloudevents.core.base import BaseCloudEvent

from eventing.http_binding import BadEvent
from functions.failures import Busy, Retry
from functions.pass_strategies import Looking, Replies, State, Subject
from functions.bounded_cache import Newest
from kube.client.deadline import has_time, seconds_left

T = TypeVar("T")
KEPT = 1000
"""Maximum number of subjects whose last pass, or whose unsent replies, are remembered."""
LOOKS = 2
"""Maximum passes in one request, if the reply can request another pass."""
MOST_LOOKS = 4
"""Maximum passes in one request, if the reply cannot request another pass.

A hint that arrives during the last one is rejected and delivered again.
"""
LOOK_SECONDS = 0.7
"""Minimum time for a pass; with less, the pass would achieve nothing.

The reply then requests another pass, if it can.
"""


class Seen(NamedTuple):
    """The event that started a pass, by source and id, and the state that the pass has seen."""

    event: tuple[str, str]
    state: State


class Look:
    """A pass that is in progress, or waits until its place is free, and the hints that it has coalesced."""

    def __init__(self, subject: Subject, event: BaseCloudEvent) -> None:
        self.subject = subject
        self.key = _key(event)
        self.hints: list[BaseCloudEvent] = []
        self.is_last = False


class Looks:
    """All passes of one function in a process. Thread-safe."""

    def __init__(self, rule: Looking) -> None:
        self._rule = rule
        self._changed = threading.Condition()
        self._under_way: dict[Subject, Look] = {}
        self._places: set[str] = set()
        self._seen = Newest[Subject, Seen](KEPT)
        self._untold = Newest[Subject, Replies](KEPT)

    def look(self, event: BaseCloudEvent, once: Callable[[BaseCloudEvent], Replies]) -> Replies:
        """Return the replies to a hint: none if a pass coalesces it or has seen its state, else those of its passes.

        Raises `Retry` if its place is busy for too long, or the passes end without a reply.
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
        """Return the reply. If the passes fail after changes, the next pass for the subject reports these changes."""
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
        """Return whether the next pass of this request is the last one.

        That is so if the reply cannot request another pass, and the maximum number or the time is reached.
        """
        ends = len(looks) + 1 >= MOST_LOOKS or not has_time(LOOK_SECONDS)
        return ends and self._rule.merged(event, looks, more=True) is None

    def _begin(self, subject: Subject, hint: BaseCloudEvent) -> Look | None:
        """Return a new pass once its place is free, or None if another pass coalesces the hint or has seen its state.

        Raises `Busy` if the place stays occupied for too long, or if the pass in progress is the last one of its
        request. Raises it also while the event's own pass is in progress. The redelivered event would not receive that
        pass's reply, which may contain the next step.
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
        """Store the value for a subject; beyond the limit, the oldest one is forgotten."""
        with self._changed:
            known[subject] = value

    def _absorbed(self, look: Look, *, is_last: bool) -> list[BaseCloudEvent]:
        """Return the hints that have arrived; without one, end the pass under the same lock, so that no hint is lost.

        With `is_last` no more hints are coalesced; the broker delivers them again after this pass.
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
        """Free the place of the pass for the next one; a second call does nothing."""
        if self._under_way.get(look.subject) is look:
            del self._under_way[look.subject]
            self._places.discard(look.subject.place)
            self._changed.notify_all()


def _key(event: BaseCloudEvent) -> tuple[str, str]:
    return event.get_source(), event.get_id()
