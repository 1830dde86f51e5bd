"""Arranges recorded events as trees of causes and effects, one per maintenance or run, with delays. No I/O.

Events that are not replies of a function (from the API server, PodSource or the tick) are roots, in order of arrival.
Only `budget.opened` is an effect of the last `pods.evicted` before it: the delay between them is the time since the
last report of evictions. Before the first report, it is an effect of the `node.tainted` that started the evictions, but
never of one that `resync` emitted because of a tick.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from eventing.dead_letters import DeadLetter
from eventing.events import BUDGET_OPENED, NODE_TAINTED, PODS_EVICTED, SOURCE_PREFIX
from eventing.journal.entries import Attempt, Entry, get_object_identity, list_unresolved_failures
from eventing.subscriptions import list_subscribers

RECORDING_GRACE_PERIOD = timedelta(seconds=5)
"""Time within which an attempt is recorded; functions publish their attempts every half second."""


@dataclass(frozen=True)
class Branch:
    """A node of a tree: one event with its effects.

    Attributes:
        entry: The recorded event.
        delay_seconds: Seconds from the arrival of the event's cause to its own arrival, None if the cause is unknown.
        external_cause_type: Event type of the cause if the cause belongs to a different tree, such as a tick of the
            PingSource; otherwise "".
        missing_functions: Subscribers without a recorded attempt.
        replied_functions: Those of `missing_functions` that replied but were killed before they published their
            attempt.
        dead_letters: A dead letter for each subscriber that did not accept the event.
        effects: The functions' replies to the event.
    """

    entry: Entry
    delay_seconds: float | None = None
    external_cause_type: str = ""
    missing_functions: tuple[str, ...] = ()
    replied_functions: tuple[str, ...] = ()
    dead_letters: list[DeadLetter] = field(default_factory=list)
    effects: list[Branch] = field(default_factory=list)

    @property
    def attempts(self) -> list[Attempt]:
        """Return the recorded attempts, except for replays."""
        return [attempt for attempt in self.entry.attempts if not attempt.replay]

    @property
    def unresolved_failures(self) -> list[Attempt]:
        """Return the attempts with a failed step after which the same function did not succeed."""
        return list_unresolved_failures(self.attempts)


@dataclass(frozen=True)
class Tree:
    """All recorded events about one object; the events about no object form a tree with an empty uid."""

    kind: str
    uid: str
    name: str
    node: str
    roots: list[Branch]

    def iter_branches(self) -> Iterator[tuple[int, Branch]]:
        """Yield each branch with its depth, causes before effects.

        The method is not recursive, because a long drain leads to a deep tree.
        """
        stack = [(0, branch) for branch in reversed(self.roots)]
        while stack:
            depth, branch = stack.pop()
            yield depth, branch
            stack += [(depth + 1, effect) for effect in reversed(branch.effects)]


def find_functions_without_attempt(entry: Entry, now: datetime) -> tuple[str, ...]:
    """Return the subscribers without a recorded attempt, after `RECORDING_GRACE_PERIOD` has passed."""
    if entry.dead_letter or now - entry.arrived < RECORDING_GRACE_PERIOD:
        return ()
    recorded = {attempt.function for attempt in entry.attempts if not attempt.replay}
    return tuple(name for name in list_subscribers(entry.event) if name not in recorded)


def build_trees(entries: Sequence[Entry], causes: Iterable[Entry], now: datetime) -> list[Tree]:
    """Build the trees of these entries, ordered by their first events; the tree without an object is the last one.

    `causes` are entries that may have caused some of these entries but are not part of the trees.
    """
    events = [entry for entry in entries if entry.dead_letter is None]
    entries_by_id = {entry.event.get_id(): entry for entry in (*causes, *events)}
    replies = {(entry.cause, entry.event.get_source()) for entry in events}
    cause_ids = _find_cause_ids(events)
    branches_by_id = {
        event_id: _build_branch(entries_by_id[event_id], entries_by_id.get(cause_id), replies, now)
        for event_id, cause_id in cause_ids.items()
    }
    trees_by_uid: dict[str, Tree] = {}
    for event_id, branch in branches_by_id.items():
        _attach_to_cause_or_tree(branch, branches_by_id.get(cause_ids[event_id]), trees_by_uid)
    for entry in entries:
        if entry.dead_letter:
            _attach_dead_letter(entry, entry.dead_letter, branches_by_id, trees_by_uid)
    return sorted(trees_by_uid.values(), key=lambda tree: not tree.uid)


def find_missing_cause_ids(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return the ids of the causes that are not among these entries."""
    entries = list(entries)
    known_ids = {entry.event.get_id() for entry in entries}
    return tuple({entry.cause for entry in entries if entry.cause} - known_ids)


def _find_cause_ids(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the id of each event's cause, "" if there is none, by the id of the event.

    An effect may be recorded shortly before its cause. A `budget.opened` with an earlier effect therefore has no cause,
    because the last `pods.evicted` may be this effect.
    """
    cause_ids: dict[str, str] = {}
    last_reports: dict[str, str] = {}
    caused_by: set[str] = set()
    for entry in entries:
        event_id, event_type = entry.event.get_id(), entry.event.get_type()
        has_report = event_type == BUDGET_OPENED and event_id not in caused_by
        cause_ids[event_id] = entry.cause or (last_reports.get(entry.maintenance, "") if has_report else "")
        caused_by.add(entry.cause)
        if event_type == PODS_EVICTED:
            last_reports[entry.maintenance] = event_id
        elif event_type == NODE_TAINTED and not entry.is_from_tick:
            last_reports.setdefault(entry.maintenance, event_id)
    return cause_ids


def _build_branch(entry: Entry, cause: Entry | None, replies: Collection[tuple[str, str]], now: datetime) -> Branch:
    missing = find_functions_without_attempt(entry, now)
    replied = tuple(name for name in missing if (entry.event.get_id(), SOURCE_PREFIX + name) in replies)
    if cause is None:
        return Branch(entry, missing_functions=missing, replied_functions=replied)
    # If several processes write, an effect may be recorded shortly before its cause.
    delay_seconds = max(0.0, (entry.arrived - cause.arrived).total_seconds())
    external_cause_type = "" if cause.maintenance == entry.maintenance else cause.event.get_type()
    return Branch(entry, delay_seconds, external_cause_type, missing, replied)


def _attach_to_cause_or_tree(branch: Branch, cause: Branch | None, trees_by_uid: dict[str, Tree]) -> None:
    """Add a branch to the effects of its cause, or to its tree as a root if the cause is not in the same tree."""
    if cause is not None and not branch.external_cause_type and cause is not branch:
        cause.effects.append(branch)
    else:
        _get_or_create_tree(branch.entry, trees_by_uid).roots.append(branch)


def _attach_dead_letter(
    entry: Entry, dead_letter: DeadLetter, branches_by_id: Mapping[str, Branch], trees_by_uid: dict[str, Tree]
) -> None:
    """Add a dead letter to its event's branch, or to the roots of its tree if that event was not recorded."""
    branch = branches_by_id.get(entry.event.get_id())
    if branch is None:
        branch = Branch(entry)
        _get_or_create_tree(entry, trees_by_uid).roots.append(branch)
    branch.dead_letters.append(dead_letter)


def _get_or_create_tree(entry: Entry, trees_by_uid: dict[str, Tree]) -> Tree:
    uid, name = get_object_identity(entry.event)
    if uid not in trees_by_uid:
        trees_by_uid[uid] = Tree(entry.kind, uid, name, entry.node if uid else "", [])
    return trees_by_uid[uid]
