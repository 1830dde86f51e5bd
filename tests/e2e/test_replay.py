"""Tests of replay and dead letters on the real engines, where the Triggers have the functions' addresses."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from click.testing import CliRunner, Result
from cloudevents.core.v1.event import CloudEvent

from console.cli import commands
from console.operations.replay_runner import Targets, Wanted
from eventing import events
from eventing.journal.store import Journal, Query
from eventing.replay.function_client import post, recorded
from kube.paths import NAMESPACE
from localcluster.processes import await_ready
from tests.e2e.environment import Stage
from tests.workload import audit, is_dry

pytestmark = pytest.mark.e2e


def run(stage: Stage, *words: str) -> Result:
    """Run `kubectl maintenance` on the environment's cluster and journal."""
    where = ("--kubeconfig", str(stage.local.kubeconfig))
    return CliRunner().invoke(commands, [*where, *words, "--journal", str(stage.product.journal)])


def test_a_finished_maintenance_is_replayed_where_the_triggers_say(stage: Stage) -> None:
    """X-2: a dry replay calls every function at its Trigger's address, and finds no difference."""
    drains = stage.drains("300ms", nodes=stage.nodes[:1])
    drains.begin()
    drains.await_succeeded()
    uid = drains.maintenances[0]["metadata"]["uid"]
    targets = Targets(Wanted(namespace=NAMESPACE), stage.admin)
    with closing(Journal(stage.product.journal)) as book:

        def whole() -> bool:
            found = book.select(Query(maintenance=uid))
            return all(recorded(entry, target.function) for entry in found for target in targets.of(entry.event))

        await_ready("the recording", whole, [], 10)
    seen = audit(stage.local)

    found = run(stage, "replay", "--maintenance", uid, "--dry-run=server")

    print(found.stdout.splitlines()[-1])
    assert found.exit_code == 0, found.output
    assert " 0 different" in found.stdout
    assert "evict" in found.stdout
    assert all(is_dry(entry) for entry in seen.writes_by())
    drains.end(20)


def test_a_dead_letter_says_why_and_is_redriven(stage: Stage) -> None:
    """X-6: a dead letter has code, reason and destination on every engine, and stays open if it is rejected again."""
    letter = {"id": "refused", "source": "/test", "type": events.NODE_CORDONED, "datacontenttype": "application/json"}
    assert post(CloudEvent(letter, {}), stage.product.broker_url).status_code == 202
    with closing(Journal(stage.product.journal)) as book:
        query = Query(dead=True, ids=("refused",))
        await_ready("the letter", lambda: any(entry.attempts for entry in book.select(query)), [], 15)

    shown = run(stage, "deadletters", "-o", "json")
    again = run(stage, "redrive", "refused", "--yes")

    (said,) = [one for one in json.loads(shown.stdout)["deadLetters"] if one["event"] == "refused"]
    assert (said["function"], said["code"], said["reason"].strip()) == ("taint", 400, "data.node is missing")
    assert said["destination"] == stage.product.function_url("taint")
    assert again.exit_code == 1, again.output
    assert "failed: 400 data.node is missing" in again.stdout
