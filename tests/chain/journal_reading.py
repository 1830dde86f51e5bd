"""Helpers that wait for an object's events to be recorded, read these events, and run `kubectl maintenance`."""

from __future__ import annotations

from contextlib import closing

from click.testing import CliRunner, Result

from console.cli import cli
from console.operations.replay_targets import TargetOptions, TargetResolver
from eventing.extensions import EXTENSION_OF_KIND
from eventing.journal.entries import Attempt, Entry
from eventing.journal.store import Journal, Query
from eventing.replay.function_client import find_recorded_attempt
from kube.client.sync_client import SyncClient
from localcluster.processes import wait_until_ready
from tests.chain.environment import EventChainEnvironment


def wait_for_recorded_events(environment: EventChainEnvironment, uid: str) -> list[Entry]:
    """Wait until all events of a maintenance are delivered and recorded, and return its recorded events."""
    environment.wait_until_delivered()  # An event that is still undelivered could cause further events.
    return wait_for_complete_recording(environment.client, environment.journal, uid)


def wait_for_complete_recording(client: SyncClient, journal: str, uid: str) -> list[Entry]:
    """Wait until the journal contains a function call for each event and matching Trigger, and all replies.

    Returns the events about the object.
    """
    targets = TargetResolver(TargetOptions(in_process=True), client)
    entries: list[Entry] = []

    def is_complete(journal: Journal) -> bool:
        entries[:] = journal.select(Query(maintenance=uid))
        recorded_ids = {entry.event.get_id() for entry in entries}
        attempts = [
            find_recorded_attempt(entry, target.function)
            for entry in entries
            for target in targets.resolve(entry.event)
        ]
        return all(attempt and select_reply_ids(uid, attempt) <= recorded_ids for attempt in attempts)

    with closing(Journal(journal)) as store:
        wait_until_ready("the recording", lambda: is_complete(store), [], 10)
    return entries


def select_reply_ids(object_uid: str, attempt: Attempt) -> set[str]:
    """Return the ids of the attempt's reply events that are about the object."""
    return {str(reply["id"]) for reply in attempt.replies if object_uid in map(reply.get, EXTENSION_OF_KIND.values())}


def run_command(environment: EventChainEnvironment, *arguments: str) -> Result:
    """Run `kubectl maintenance` on the environment's cluster and journal."""
    cluster_options = ("--kubeconfig", str(environment.cluster.kubeconfig))
    journal_options = ("--journal", environment.journal) if "--journal" not in arguments else ()
    return CliRunner().invoke(cli, [*cluster_options, *arguments, *journal_options], prog_name="kubectl maintenance")
