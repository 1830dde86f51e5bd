"""One recorded event replayed dry for a person at the console: what each function answered then, and answers now."""

from __future__ import annotations

from dataclasses import dataclass

from console.operations.diff import Replayed
from console.operations.targets import Targets, Wanted
from eventing.journal.entries import Entry
from eventing.replay.again import new_replay_id, recorded, replay
from eventing.replay.changes import objects_in, read_changes
from eventing.replay.differences import compare
from kube.door.api import Api
from kube.door.cluster import Cluster


@dataclass(frozen=True)
class Rehearsal:
    """What a dry replay showed: an answer for each function, and a sentence for each object that is gone since."""

    answers: tuple[Replayed, ...]
    lost: tuple[str, ...]


def rehearse(entry: Entry, cluster: Cluster, caller: Api, functions: str) -> Rehearsal:
    """Replay the event to every function whose Trigger takes it; nothing that they write is kept.

    In: the console's door, which finds the Triggers; the caller's, which sees what became of the objects; below which
    URL functions answer by name, "" for where the Triggers say. Raises `Trouble` and `NoAnswer`, in one line each.
    """
    targets = Targets(Wanted(base=functions), cluster).of(entry.event)
    changes = cluster.run(read_changes(caller, objects_in([entry])))
    replay_id = new_replay_id()
    answers = []
    for target in targets:
        now = replay(entry, target.function, target.url, dry_run=True, replay_id=replay_id)
        then = recorded(entry, target.function)
        answers.append(Replayed(entry, then, now, compare(then, now, changes) if then else []))
    return Rehearsal(tuple(answers), tuple(changes.lost()))
