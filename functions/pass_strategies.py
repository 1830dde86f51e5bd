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
        """Return one hint that is at least as new as each of these hints."""

    def read_versions(self, replies: Replies) -> ResourceVersions:
        """Return the resourceVersions that a pass with these replies has seen, keyed by the hints' field names."""

    def has_seen(self, versions: ResourceVersions, hint: BaseCloudEvent) -> bool:
        """Return whether a pass that saw this state covers everything that the hint reports; else it needs a pass."""

    def select_carried_over(self, replies: Replies) -> Replies:
        """Return the replies of a pass that no later pass would repeat.

        If the request fails before they are sent, the next response includes them.
        """

    def merge(self, event: BaseCloudEvent, passes: Sequence[Replies], *, more: bool) -> Replies | None:
        """Merge the replies of these passes into the response to `event`.

        If `more` is true, further hints have arrived since the last pass. In that case, returns None if no response
        can request another pass.
        """


def _get_object_version(hint: BaseCloudEvent) -> str:
    return str(get_metadata(hint).get("resourceVersion") or "")


class LatestStateStrategy:
    """Strategy for passes that return everything that is due, so that the last replies replace all earlier ones.

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
        """Return no versions: every hint needs a pass."""
        return {}

    def has_seen(self, _versions: ResourceVersions, _hint: BaseCloudEvent) -> bool:
        """Return False: every hint needs a pass."""
        return False

    def select_carried_over(self, _replies: Replies) -> Replies:
        """Return no replies: the next pass returns what is due then."""
        return []

    def merge(self, _event: BaseCloudEvent, passes: Sequence[Replies], *, more: bool) -> Replies | None:
        """Return the last pass's replies, or None if `more` is true, since they cannot request another pass."""
        return None if more else passes[-1]


class ChangeStrategy(LatestStateStrategy):
    """Strategy for passes that each return only what that pass itself found.

    A later pass does not repeat what an earlier one changed, recorded as an Event, or selected by round robin.
    """

    def select_carried_over(self, replies: Replies) -> Replies:
        """Return all replies: no later pass repeats them."""
        return replies

    def merge(self, event: BaseCloudEvent, passes: Sequence[Replies], *, more: bool) -> Replies | None:
        """Return all replies, but only the last of several with the same type, object and node."""
        if more:
            return super().merge(event, passes, more=more)
        return list({_get_deduplication_key(reply): reply for replies in passes for reply in replies}.values())


def _get_deduplication_key(reply: BaseCloudEvent) -> tuple[str, str | None, object, object]:
    return reply.get_type(), reply.get_subject(), reply.get_extension("maintenance"), reply.get_extension("node")
