"""One recorded event replayed dry for a person at the console: what each function answered then, and answers now."""

from __future__ import annotations

from dataclasses import dataclass

from console.operations.diff import Replayed
from console.operations.targets import Targets, Wanted
from eventing.journal.entries import Entry
from eventing.replay.again import new_run, recorded, replay
from eventing.replay.differences import compare
from eventing.replay.world import look, mentioned
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
    world = cluster.run(look(caller, mentioned([entry])))
    run = new_run()
    answers = []
    for target in targets:
        now = replay(entry, target.function, target.url, dry_run=True, run=run)
        then = recorded(entry, target.function)
        answers.append(Replayed(entry, then, now, compare(then, now, world) if then else []))
    return Rehearsal(tuple(answers), tuple(world.lost()))
