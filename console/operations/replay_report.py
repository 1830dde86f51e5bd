"""Results of a replay: the recorded and new answers compared, a summary, and the JSON output. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eventing.journal.entries import Attempt, Entry
from eventing.replay.function_client import Answer
from eventing.replay.object_changes import evicted_in
from eventing.replay.response_diff import Difference
from kube.text_limits import counted

SAME, EXPLAINED, DIFFERS, FAILS, UNRECORDED = "same", "explained", "differs", "fails", "not recorded"


@dataclass(frozen=True)
class Replayed:
    """One event replayed to one function: the recorded answer (None if unknown), the new one, and the differences."""

    entry: Entry
    then: Attempt | None
    now: Answer
    differences: Sequence[Difference]

    @property
    def result(self) -> str:
        """Return one of the five result words.

        A function that fails now never counts as the same, even if it failed in the recording too.
        """
        if any(not difference.explained for difference in self.differences):
            return DIFFERS
        if self.now.status >= 500:
            return FAILS
        if self.then is None:
            return UNRECORDED
        return EXPLAINED if self.differences else SAME


def summary(found: Sequence[Replayed], *, dry_run: bool) -> str:
    """Return the number of answers per result, and whether the functions' writes were kept."""
    counts = Counter(replayed.result for replayed in found)
    events = len({id(replayed.entry) for replayed in found})
    parts = [
        f"{counts[SAME]} the same",
        f"{counts[EXPLAINED]} explained by what changed since" if counts[EXPLAINED] else "",
        f"{counts[UNRECORDED]} with nothing recorded to compare" if counts[UNRECORDED] else "",
        f"{counts[FAILS]} failed" if counts[FAILS] else "",
        f"{counts[DIFFERS]} different",
    ]
    totals = f"{counted(events, 'event')}, {counted(len(found), 'answer')}: {', '.join(filter(None, parts))}"
    return f"{totals}; {_kept(found, dry_run=dry_run)}"


def _kept(found: Sequence[Replayed], *, dry_run: bool) -> str:
    """Describe whether the functions' writes were kept; the answers list only evictions, not other writes."""
    if dry_run:
        return "a dry run: no write was kept"
    replies = (reply for replayed in found for reply in replayed.now.replies)
    evicted = {pod["uid"] for reply in replies for pod in evicted_in(reply.get("data"))}
    return "each write was kept" + (f", {counted(len(evicted), 'eviction')} among them" if evicted else "")


def as_json(replay_id: str, *, dry_run: bool, lost: Sequence[str], found: Sequence[Replayed]) -> dict[str, Any]:
    """Return the results of the whole replay as one JSON object."""
    counts = Counter(replayed.result for replayed in found)
    return {
        "replay": replay_id,
        "dryRun": dry_run,
        "lost": list(lost),
        "results": dict(counts),
        "answers": [_row(replayed) for replayed in found],
    }


def _row(replayed: Replayed) -> dict[str, Any]:
    event, then, now = replayed.entry.event, replayed.then, replayed.now
    return {
        "event": event.get_id(),
        "type": event.get_type(),
        "function": now.function,
        "result": replayed.result,
        "then": {"status": then.status, "replies": list(then.replies), "error": then.error} if then else None,
        "now": {"status": now.status, "replies": list(now.replies), "error": now.error},
        "differences": [
            {name: value for name, value in asdict(difference).items() if name not in ("event", "function")}
            for difference in replayed.differences
        ],
    }
