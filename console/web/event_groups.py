"""Groups recorded events by the object that they are about. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from console.web.swimlanes import list_attempts_without_replays
from eventing.journal.entries import Entry, get_object_identity, list_unresolved_failures
from eventing.journal.origins import Origin, find_origin

KIND_LABELS = {
    "NodeMaintenance": "Maintenance",
    "MutexRunConfig": "Upgrade run",
    "MutexRule": "Upgrade rule",
    "MutexTarget": "Upgrade target",
}
"""Names of the kinds, as users read them."""


@dataclass(frozen=True)
class EventGroup:
    """The events about one object, newest first; events about no object have a group with an empty uid.

    Attributes:
        idle_count: Number of events of ticks that changed nothing, which `entries` omits.
        origin: Who started and ended the maintenance, and why; empty for another object.
    """

    uid: str
    kind: str
    name: str
    node: str
    entries: Sequence[Entry]
    idle_count: int
    origin: Origin

    @property
    def html_id(self) -> str:
        """Return the id of the group's element, by which a page keeps the group open across updates."""
        return f"group-{self.uid or 'none'}"

    @property
    def title(self) -> str:
        """Return the name of the node under maintenance, or of another object."""
        return (self.node or self.name) if self.uid else "Other events"

    @property
    def failed_count(self) -> int:
        """Return the number of failed events, as `is_failed` defines them."""
        return sum(map(is_failed, self.entries))


def group_by_object(entries: Iterable[Entry]) -> list[EventGroup]:
    """Return the groups of these entries, which are newest first; the group without an object is the last one.

    The group with the newest event is the first one.
    """
    entries_by_uid: dict[str, list[Entry]] = {}
    for entry in entries:
        entries_by_uid.setdefault(entry.maintenance, []).append(entry)
    groups = [_build_group(uid, members) for uid, members in entries_by_uid.items()]
    return sorted(groups, key=lambda group: not group.uid)


def _build_group(uid: str, members: Sequence[Entry]) -> EventGroup:
    newest = members[0]
    shown = [entry for entry in members if not entry.is_idle_tick]
    node = next((entry.node for entry in members if entry.node), "") if newest.kind == "NodeMaintenance" else ""
    name, origin = get_object_identity(newest.event)[1], find_origin(entry.event for entry in reversed(members))
    return EventGroup(uid, newest.kind, name, node, shown, len(members) - len(shown), origin)


def is_failed(entry: Entry) -> bool:
    """Return whether the event is a dead letter, reports a failure, or was not processed after the last attempt."""
    is_unprocessed = bool(list_unresolved_failures(list_attempts_without_replays(entry)))
    return entry.dead_letter is not None or bool(entry.failure_reason) or is_unprocessed
