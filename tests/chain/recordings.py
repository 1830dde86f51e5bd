"""What the journal holds of a maintenance, once it is whole, and the commands that read it."""

from __future__ import annotations

from contextlib import closing

from click.testing import CliRunner, Result

from console.cli import commands
from console.operations.replay_targets import Targets, Wanted
from eventing.journal.entries import Entry
from eventing.journal.store import Journal, Query
from eventing.replay.again import recorded
from localcluster.processes import await_ready
from tests.chain.scene import Scene


def recording(scene: Scene, uid: str) -> list[Entry]:
    """The events of a maintenance, once all that the Triggers called for, and what came of it, is recorded."""
    targets = Targets(Wanted(in_process=True), scene.admin)
    found: list[Entry] = []

    def whole(book: Journal) -> bool:
        found[:] = book.select(Query(maintenance=uid))
        known = {entry.event.get_id() for entry in found}
        attempts = [recorded(entry, target.function) for entry in found for target in targets.of(entry.event)]
        return all(attempt and {reply["id"] for reply in attempt.replies} <= known for attempt in attempts)

    scene.await_delivered()  # nothing of it is still on its way from a source
    with closing(Journal(scene.journal)) as book:
        await_ready("the recording", lambda: whole(book), [], 10)
    return found


def run(scene: Scene, *words: str) -> Result:
    """Run `kubectl maintenance` on the scene's cluster and journal."""
    where = ("--kubeconfig", str(scene.cluster.kubeconfig))
    found = ("--journal", scene.journal) if "--journal" not in words else ()
    return CliRunner().invoke(commands, [*where, *words, *found], prog_name="kubectl maintenance")
