"""Strategies for coalescing hints, so that only one pass per subject runs at a time (design rule 8).

A hint is an event that reports only that something may have changed. A pass is one execution of a function: it reads
the current state and does what can be done now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from cloudevents.core.base import BaseCloudEvent

from functions.event_data import get_metadata
from kube.resource_versions import find_newest

Replies = list[BaseCloudEvent]
"""The events that one pass returns."""
ResourceVersions = Mapping[str, str]
"""The resourceVersions that a pass has seen, keyed by their field names in event data."""


class PassKey(NamedTuple):
    """Key of a pass: passes with the same `serial_key` run one after another; hints with the same key share a pass."""

    serial_key: str
    coalesce_key: str


class PassStrategy(Protocol):
    """Strategy that defines how a function's hints coalesce and how the replies of its passes are merged."""

    def build_key(self, event: BaseCloudEvent) -> PassKey:
        """Return the key of the pass that the event requires. Raises `BadEvent` if the event lacks the key's fields."""

    def select_newest(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """Return a hint that reports a state at least as new as each of `hints` does."""

    def read_versions(self, replies: Replies) -> ResourceVersions:
        """Return the resourceVersions that a pass with these replies has seen, keyed by the hints' field names."""

    def has_seen(self, versions: ResourceVersions, hint: BaseCloudEvent) -> bool:
        """Return whether a pass that has seen `versions` makes a pass for the hint unnecessary."""

    def select_unrepeated_replies(self, replies: Replies) -> Replies:
        """Return the replies of a pass that no later pass would return again.

        If the request fails before these replies are sent, the next response includes them.
        """

    def merge(self, event: BaseCloudEvent, pass_replies: Sequence[Replies], *, has_more_hints: bool) -> Replies | None:
        """Merge the replies of all passes into the response to `event`.

        If `has_more_hints` is true, further hints have arrived since the last pass. In that case, returns None if no
        reply can request another pass.
        """


def _get_object_version(hint: BaseCloudEvent) -> str:
    return str(get_metadata(hint).get("resourceVersion") or "")


class LatestStateStrategy:
    """Strategy for passes that return all events that are due, so that the last replies replace all earlier replies.

    `build_serial_key` maps an event to the name of the state that its pass reads, such as `node n1`.
    """

    def __init__(self, build_serial_key: Callable[[BaseCloudEvent], str]) -> None:
        self._build_serial_key = build_serial_key

    def build_key(self, event: BaseCloudEvent) -> PassKey:
        """Return a key that consists of the serial key only."""
        return PassKey(self._build_serial_key(event), "")

    def select_newest(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """Return the hint with the newest object; if no hint carries an object, the last hint received."""
        latest = find_newest(_get_object_version(hint) for hint in hints)
        return next((hint for hint in hints if latest and _get_object_version(hint) == latest), hints[-1])

    def read_versions(self, _replies: Replies) -> ResourceVersions:
        """Return no versions, because every hint needs a pass."""
        return {}

    def has_seen(self, _versions: ResourceVersions, _hint: BaseCloudEvent) -> bool:
        """Return False, because every hint needs a pass."""
        return False

    def select_unrepeated_replies(self, _replies: Replies) -> Replies:
        """Return no replies, because the next pass returns all events that are still due."""
        return []

    def merge(self, _event: BaseCloudEvent, pass_replies: Sequence[Replies], *, has_more_hints: bool) -> Replies | None:
        """Return the last pass's replies, or None if `has_more_hints`, since no reply can request another pass."""
        return None if has_more_hints else pass_replies[-1]


class ChangeStrategy(LatestStateStrategy):
    """Strategy for passes of which each returns events only about its own results.

    A later pass returns no event for an object that an earlier pass changed, reported in an Event, or selected by round
    robin.
    """

    def select_unrepeated_replies(self, replies: Replies) -> Replies:
        """Return all replies, because no later pass would return them again."""
        return replies

    def merge(self, event: BaseCloudEvent, pass_replies: Sequence[Replies], *, has_more_hints: bool) -> Replies | None:
        """Return the replies of all passes; of several replies with the same type, object and node, only the last."""
        if has_more_hints:
            return super().merge(event, pass_replies, has_more_hints=has_more_hints)
        return list({_get_deduplication_key(reply): reply for replies in pass_replies for reply in replies}.values())


def _get_deduplication_key(reply: BaseCloudEvent) -> tuple[str, str | None, object, object]:
    return reply.get_type(), reply.get_subject(), reply.get_extension("maintenance"), reply.get_extension("node")
