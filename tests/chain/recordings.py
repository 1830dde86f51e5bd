"""What the journal holds of a maintenance, once it is whole, and the commands that read it."""

from __future__ import annotations

from contextlib import closing

from click.testing import CliRunner, Result

from console.cli import commands
from console.operations.replaying import Targets, Wanted
from eventing.journal.entries import Attempt, Entry
from eventing.journal.store import Journal, Query
from eventing.replay.again import recorded
from eventing.subjects import SUBJECTS
from kube.door.sync_client import Cluster
from localcluster.processes import await_ready
from tests.chain.scene import Scene


def recording(scene: Scene, uid: str) -> list[Entry]:
    """The events of a maintenance, once all that the Triggers called for, and what came of it, is recorded."""
    scene.await_delivered()  # nothing of it is still on its way from a source
    return whole_recording(scene.admin, scene.journal, uid)


def whole_recording(admin: Cluster, journal: str, uid: str) -> list[Entry]:
    """The same, of any object that events are about, once they are delivered."""
    targets = Targets(Wanted(in_process=True), admin)
    found: list[Entry] = []

    def whole(book: Journal) -> bool:
        found[:] = book.select(Query(maintenance=uid))
        known = {entry.event.get_id() for entry in found}
        attempts = [recorded(entry, target.function) for entry in found for target in targets.of(entry.event)]
        return all(attempt and about(uid, attempt) <= known for attempt in attempts)

    with closing(Journal(journal)) as book:
        await_ready("the recording", lambda: whole(book), [], 10)
    return found


def about(uid: str, attempt: Attempt) -> set[str]:
    """The ids of those replies that are about an object, and none of the others."""
    return {str(reply["id"]) for reply in attempt.replies if uid in map(reply.get, SUBJECTS.values())}


def run(scene: Scene, *words: str) -> Result:
    """Run `kubectl maintenance` on the scene's cluster and journal."""
    where = ("--kubeconfig", str(scene.cluster.kubeconfig))
    found = ("--journal", scene.journal) if "--journal" not in words else ()
    return CliRunner().invoke(commands, [*where, *words, *found], prog_name="kubectl maintenance")
