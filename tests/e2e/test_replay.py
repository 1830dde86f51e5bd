"""Tests for replays and dead letters on the real engines, whose Triggers contain the functions' addresses."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from click.testing import CliRunner, Result
from cloudevents.core.v1.event import CloudEvent

from console.cli import cli
from console.operations.replay_targets import TargetOptions, TargetResolver
from eventing import events
from eventing.journal.store import Journal, Query
from eventing.replay.function_client import find_recorded_attempt, post_event
from kube.paths import DEFAULT_NAMESPACE
from localcluster.audit_log import AuditLog, is_dry_run
from localcluster.processes import wait_until_ready
from tests.e2e.environment import E2eEnvironment

pytestmark = pytest.mark.e2e


def run_command(environment: E2eEnvironment, *arguments: str) -> Result:
    """Run `kubectl maintenance` on the environment's cluster and journal."""
    options = ("--kubeconfig", str(environment.cluster.kubeconfig))
    return CliRunner().invoke(cli, [*options, *arguments, "--journal", str(environment.product.journal)])


def test_replay_uses_addresses_of_triggers(environment: E2eEnvironment) -> None:
    """X-2: a dry replay calls every function at its Trigger's address, and finds no differences."""
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[:1])
    drains.create_maintenances()
    drains.wait_until_succeeded()
    uid = drains.maintenances[0]["metadata"]["uid"]
    targets = TargetResolver(TargetOptions(namespace=DEFAULT_NAMESPACE), environment.client)
    with closing(Journal(environment.product.journal)) as journal:

        def is_complete() -> bool:
            entries = journal.select(Query(maintenance=uid))
            return all(
                find_recorded_attempt(entry, target.function)
                for entry in entries
                for target in targets.resolve(entry.event)
            )

        wait_until_ready("the recording", is_complete, [], 10)
    audit = AuditLog(environment.cluster.audit_log)

    result = run_command(environment, "replay", "--maintenance", uid, "--dry-run=server")

    print(result.stdout.splitlines()[-1])
    assert result.exit_code == 0, result.output
    assert " 0 different" in result.stdout
    assert "evict" in result.stdout
    assert all(is_dry_run(entry) for entry in audit.list_writes_by())
    drains.end_maintenances(20)


def test_dead_letter_has_reason_and_remains_open_if_rejected_again(environment: E2eEnvironment) -> None:
    """X-6: on every engine, a dead letter has code, reason and destination, and stays open if rejected again."""
    attributes = {
        "id": "refused",
        "source": "/test",
        "type": events.NODE_CORDONED,
        "datacontenttype": "application/json",
    }
    assert post_event(CloudEvent(attributes, {}), environment.product.broker_url).status_code == 202
    with closing(Journal(environment.product.journal)) as journal:
        query = Query(dead_letters_only=True, ids=("refused",))
        wait_until_ready("the dead letter", lambda: any(entry.attempts for entry in journal.select(query)), [], 15)

    listed = run_command(environment, "deadletters", "-o", "json")
    result = run_command(environment, "redrive", "refused", "--yes")

    (row,) = [
        dead_letter for dead_letter in json.loads(listed.stdout)["deadLetters"] if dead_letter["event"] == "refused"
    ]
    assert (row["function"], row["code"], row["reason"].strip()) == ("taint", 400, "data.node is missing")
    assert row["destination"] == environment.product.get_function_url("taint")
    assert result.exit_code == 1, result.output
    assert "failed: 400 data.node is missing" in result.stdout
