"""Replay recorded events: one dry run for a page, and the comparison of then and now that commands and pages share."""

from __future__ import annotations

from dataclasses import dataclass

from console.operations.diff import Replayed
from console.operations.replay_targets import Targets, Wanted
from eventing.journal.entries import Entry
from eventing.replay.again import Answer, new_replay_id, recorded, replay
from eventing.replay.changes import Changes, objects_in, read_changes
from eventing.replay.differences import compare
from kube.door.api import Api
from kube.door.sync_client import Cluster


@dataclass(frozen=True)
class DryRun:
    """What a dry run showed: an answer of each function, and a sentence for each object that is gone since."""

    answers: tuple[Replayed, ...]
    lost: tuple[str, ...]


def compared(entry: Entry, now: Answer, changes: Changes) -> Replayed:
    """The answer now beside the recorded one; `changes` has what of the recording is gone since."""
    then = recorded(entry, now.function)
    return Replayed(entry, then, now, compare(then, now, changes) if then else [])


def dry_run(entry: Entry, cluster: Cluster, caller: Api, functions: str) -> DryRun:
    """Replay the event to every function whose Trigger lets it pass; none of their writes is kept.

    In: the console's door, which finds the Triggers; the caller's, which sees what became of the objects; below which
    URL functions answer by name, "" for where the Triggers say. Raises `NoResult` and `NoAnswer`, in one line each.
    """
    targets = Targets(Wanted(base=functions), cluster).of(entry.event)
    changes = cluster.run(read_changes(caller, objects_in([entry])))
    replay_id = new_replay_id()
    answers = [replay(entry, target.function, target.url, dry_run=True, replay_id=replay_id) for target in targets]
    return DryRun(tuple(compared(entry, now, changes) for now in answers), tuple(changes.lost()))
