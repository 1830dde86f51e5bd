"""Arranges recorded events as trees of cause and effect, one per maintenance or run, with the delays. No I/O.

Events that are not replies of a function (from the API server, PodSource or the tick) are roots, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from eventing.dead_letters import DeadLetter
from eventing.events import SOURCE
from eventing.journal.entries import Attempt, Entry, maintenance_of
from eventing.subscriptions import subscribers

GRACE = timedelta(seconds=5)
"""Time within which an attempt is recorded; functions publish their attempts every half second."""


@dataclass(frozen=True)
class Branch:
    """One event with its effects.

    Attributes:
        entry: The recorded event.
        after: Seconds from the arrival of its cause to its own arrival, None if the cause is unknown.
        cause: Type of the cause if it belongs to another tree, such as a tick; otherwise "".
        missing: Subscribers without a recorded attempt.
        answered: Subscribers in `missing` that replied: they ran, and ended before they published the attempt.
        dead_letters: One for each subscriber that did not accept the event.
        effects: The replies to the event.
    """

    entry: Entry
    after: float | None = None
    cause: str = ""
    missing: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    dead_letters: list[DeadLetter] = field(default_factory=list)
    effects: list[Branch] = field(default_factory=list)

    @property
    def attempts(self) -> list[Attempt]:
        """Return the recorded attempts without replays."""
        return [attempt for attempt in self.entry.attempts if not attempt.replay]

    @property
    def failures(self) -> list[Attempt]:
        """Return the failed attempts that no later success of the same function followed."""
        made_up = {made.function: made.at for made in self.attempts if not made.failed}
        return [made for made in self.attempts if made.failed and not made_up.get(made.function, made.at) > made.at]


@dataclass(frozen=True)
class Tree:
    """All recorded events about one object; events about no object have a tree with an empty uid."""

    kind: str
    uid: str
    name: str
    node: str
    roots: list[Branch]

    def branches(self) -> Iterator[tuple[int, Branch]]:
        """Yield each branch with its depth, causes before effects.

        Uses no recursion, because a long drain makes a long chain of events.
        """
        stack = [(0, branch) for branch in reversed(self.roots)]
        while stack:
            depth, branch = stack.pop()
            yield depth, branch
            stack += [(depth + 1, effect) for effect in reversed(branch.effects)]


def missing(entry: Entry, now: datetime) -> tuple[str, ...]:
    """Return the event's subscribers without a recorded attempt, once there was time to record one."""
    if entry.dead_letter or now - entry.arrived < GRACE:
        return ()
    known = {attempt.function for attempt in entry.attempts if not attempt.replay}
    return tuple(name for name in subscribers(entry.event) if name not in known)


def trees_of(entries: Sequence[Entry], causes: Iterable[Entry], now: datetime) -> list[Tree]:
    """Build the trees of these entries, ordered by their first events; the tree without an object comes last.

    `causes` are entries that may have caused some of these entries, but are not part of the trees.
    """
    events = [entry for entry in entries if entry.dead_letter is None]
    known = {entry.event.get_id(): entry for entry in (*causes, *events)}
    replies = {(entry.cause, entry.event.get_source()) for entry in events}
    branches = {entry.event.get_id(): _branch(entry, known, replies, now) for entry in events}
    trees: dict[str, Tree] = {}
    for branch in branches.values():
        _place(branch, branches, trees)
    for letter in entries:
        if letter.dead_letter:
            _place_letter(letter, letter.dead_letter, branches, trees)
    return sorted(trees.values(), key=lambda tree: not tree.uid)


def unknown_causes(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return the ids of causes that are not among these entries."""
    entries = list(entries)
    known = {entry.event.get_id() for entry in entries}
    return tuple({entry.cause for entry in entries if entry.cause} - known)


def _branch(entry: Entry, known: Mapping[str, Entry], replies: Collection[tuple[str, str]], now: datetime) -> Branch:
    absent = missing(entry, now)
    answered = tuple(name for name in absent if (entry.event.get_id(), SOURCE + name) in replies)
    cause = known.get(entry.cause)
    if cause is None:
        return Branch(entry, missing=absent, answered=answered)
    # of concurrent writes, an effect may be recorded shortly before its cause
    after = max(0.0, (entry.arrived - cause.arrived).total_seconds())
    outside = "" if cause.maintenance == entry.maintenance else cause.event.get_type()
    return Branch(entry, after, outside, absent, answered)


def _place(branch: Branch, branches: Mapping[str, Branch], trees: dict[str, Tree]) -> None:
    cause = branches.get(branch.entry.cause)
    if cause is not None and not branch.cause and cause is not branch:
        cause.effects.append(branch)
    else:
        _tree(branch.entry, trees).roots.append(branch)


def _place_letter(entry: Entry, letter: DeadLetter, branches: Mapping[str, Branch], trees: dict[str, Tree]) -> None:
    """Add a dead letter to its event's branch, or as a root if that event was not recorded."""
    branch = branches.get(entry.event.get_id())
    if branch is None:
        branch = Branch(entry)
        _tree(entry, trees).roots.append(branch)
    branch.dead_letters.append(letter)


def _tree(entry: Entry, trees: dict[str, Tree]) -> Tree:
    uid, name = maintenance_of(entry.event)
    if uid not in trees:
        trees[uid] = Tree(entry.kind, uid, name, entry.node if uid else "", [])
    return trees[uid]
