"""Arranges recorded events as trees of cause and effect, one for each maintenance or run, with the time between. Pure.

Events that no function replied with (of the API server, PodSource, the tick) are roots, in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from eventing.deadletters import DeadLetter
from eventing.events import SOURCE
from eventing.journal.entries import Attempt, Entry, maintenance_of
from eventing.subscriptions import subscribers

GRACE = timedelta(seconds=5)
"""How long an attempt may take to be recorded; functions publish theirs every half second."""


@dataclass(frozen=True)
class Branch:
    """One event with its effects.

    Attributes:
        entry: as recorded.
        after: seconds from the arrival of its cause to its own, None when the cause is not known.
        cause: type of a cause that is no branch of this tree, such as a tick; else "".
        missing: its subscribers without a recorded attempt.
        answered: those among them that replied: they ran, and ended before they could say so.
        dead_letters: whom it could not be delivered to.
        effects: the replies to it.
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
        """The recorded attempts without replays."""
        return [attempt for attempt in self.entry.attempts if not attempt.replay]

    @property
    def failures(self) -> list[Attempt]:
        """Those that failed and that no later one of the same function made up for."""
        made_up = {made.function: made.at for made in self.attempts if not made.failed}
        return [made for made in self.attempts if made.failed and not made_up.get(made.function, made.at) > made.at]


@dataclass(frozen=True)
class Tree:
    """All recorded events of one object that events are about; of none, with an empty uid."""

    kind: str
    uid: str
    name: str
    node: str
    roots: list[Branch]

    def branches(self) -> Iterator[tuple[int, Branch]]:
        """Each branch with its depth, cause before effect. No recursion: a chain may be as long as a drain."""
        stack = [(0, branch) for branch in reversed(self.roots)]
        while stack:
            depth, branch = stack.pop()
            yield depth, branch
            stack += [(depth + 1, effect) for effect in reversed(branch.effects)]


def missing(entry: Entry, now: datetime) -> tuple[str, ...]:
    """The subscribers of the event without a recorded attempt, though there was time to record one."""
    if entry.dead_letter or now - entry.arrived < GRACE:
        return ()
    known = {attempt.function for attempt in entry.attempts if not attempt.replay}
    return tuple(name for name in subscribers(entry.event) if name not in known)


def trees_of(entries: Sequence[Entry], causes: Iterable[Entry], now: datetime) -> list[Tree]:
    """Trees of these entries, in the order of their first events, that of no maintenance last.

    `causes` are entries that may have caused some of these and are not to be shown themselves.
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
    """Ids of events that caused some of these and are not among them."""
    entries = list(entries)
    known = {entry.event.get_id() for entry in entries}
    return tuple({entry.cause for entry in entries if entry.cause} - known)


def _branch(entry: Entry, known: Mapping[str, Entry], replies: Collection[tuple[str, str]], now: datetime) -> Branch:
    absent = missing(entry, now)
    answered = tuple(name for name in absent if (entry.event.get_id(), SOURCE + name) in replies)
    cause = known.get(entry.cause)
    if cause is None:
        return Branch(entry, missing=absent, answered=answered)
    # written side by side, an effect may be there a moment before its cause
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
    """Beside the event that it was; alone, where that was never recorded."""
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
