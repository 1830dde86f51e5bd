"""Reads the journal's events of one object once they are complete, and runs the commands that read the journal."""

from __future__ import annotations

from contextlib import closing

from click.testing import CliRunner, Result

from console.cli import commands
from console.operations.replay_runner import Targets, Wanted
from eventing.journal.entries import Attempt, Entry
from eventing.journal.store import Journal, Query
from eventing.replay.function_client import recorded
from eventing.object_extensions import SUBJECTS
from kube.client.sync_client import Cluster
from localcluster.processes import await_ready
from tests.chain.environment import Scene


def recording(scene: Scene, uid: str) -> list[Entry]:
    """Return a maintenance's recorded events once all its events are delivered and recorded."""
    scene.await_delivered()  # no event of this maintenance is undelivered any more
    return whole_recording(scene.admin, scene.journal, uid)


def whole_recording(admin: Cluster, journal: str, uid: str) -> list[Entry]:
    """Return an object's events once the journal has each Trigger's attempt and all replies about the object."""
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
    """Return the ids of the attempt's replies that concern the object."""
    return {str(reply["id"]) for reply in attempt.replies if uid in map(reply.get, SUBJECTS.values())}


def run(scene: Scene, *words: str) -> Result:
    """Run `kubectl maintenance` on the environment's cluster and journal."""
    where = ("--kubeconfig", str(scene.cluster.kubeconfig))
    found = ("--journal", scene.journal) if "--journal" not in words else ()
    return CliRunner().invoke(commands, [*where, *words, *found], prog_name="kubectl maintenance")
