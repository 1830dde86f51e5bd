"""Tests that text from users and other clients is printed literally and with escaped control characters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from cloudevents.core.v1.event import CloudEvent

from console.cli import cli
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal
from kube.maintenance.groups import MEDIK8S
from localcluster.cluster import LocalCluster
from tests.console.conftest import RunCommand

UNSAFE_TEXT = "[/] [red] \x1b[2J\u202e"
ESCAPED_TEXT = "[/] [red] \\x1b[2J\\u202e"
RESOURCE = "nodemaintenances.nodemaintenance.medik8s.io"


@pytest.fixture(scope="module")
def unsafe_maintenance(installed_cluster: LocalCluster) -> Iterator[str]:
    """Create a maintenance whose node name and reason have markup and control characters; yield its name."""
    metadata = {"name": "foreign-text"}
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": metadata}
    installed_cluster.kubectl(
        "create", "-f", "-", input=json.dumps({**body, "spec": {"nodeName": UNSAFE_TEXT, "reason": UNSAFE_TEXT}})
    )
    yield "foreign-text"
    installed_cluster.kubectl("delete", RESOURCE, "foreign-text")


@pytest.mark.parametrize("args", [("status",), ("status", UNSAFE_TEXT)], ids=["all", "one node"])
def test_status_escapes_unsafe_text(
    run_command: RunCommand, installed_cluster: LocalCluster, unsafe_maintenance: str, args: tuple[str, ...]
) -> None:
    """Check that `status` escapes unsafe text; for example, `nodeName: "[/]"` is invalid markup.

    If an earlier test has started the product, its functions may replace the maintenance's error, because the node does
    not exist. The test then writes the error again.
    """
    status_patch = json.dumps({"status": {"phase": "Failed", "lastError": f"{UNSAFE_TEXT}\nsecond line"}})
    for _ in range(5):
        installed_cluster.kubectl(
            "patch", RESOURCE, unsafe_maintenance, "--type=merge", "--subresource=status", "-p", status_patch
        )
        result = run_command(*args)
        if "second line" in result.stdout:
            break

    assert result.exit_code == 0, result.exception
    assert result.stdout.count(ESCAPED_TEXT) >= 2
    assert f"{ESCAPED_TEXT}\\nsecond line" in result.stdout
    assert "\x1b" not in result.stdout


def test_error_message_escapes_unsafe_text(run_command: RunCommand) -> None:
    """Check that an error message with unsafe text is escaped and consists of one line."""
    result = run_command("start", "no-such-node\x1b]0;title\x07")

    assert result.exit_code == 1
    assert result.stderr.startswith('Error: node "no-such-node\\x1b]0;title\\x07" not found: ')
    assert result.stderr.count("\n") == 1


@pytest.fixture
def unsafe_journal(tmp_path: Path) -> Path:
    """Create a journal whose event and dead letter contain unsafe text in every field that permits it."""
    file = tmp_path / "journal.db"
    fields = {
        "id": f"id{UNSAFE_TEXT}",
        "source": "/test",
        "type": f"dev.nodemaintenance.{UNSAFE_TEXT}",
        "node": UNSAFE_TEXT,
    }
    event = CloudEvent({**fields, "maintenance": "uid-1", "subject": UNSAFE_TEXT}, {})
    dead_letter = add_dead_letter_extensions(
        CloudEvent({**fields, "id": "dead"}, {}), DeadLetter(f"http://x/{UNSAFE_TEXT}", 400, UNSAFE_TEXT)
    )
    with closing(Journal(file)) as journal:
        journal.write_event(event)
        journal.write_event(dead_letter)
        arrival_time = journal.select()[0].arrived
        journal.write_attempts(
            [Attempt("/test", event.get_id(), UNSAFE_TEXT, arrival_time, 0.1, 500, error=UNSAFE_TEXT)]
        )
    return file


@pytest.mark.parametrize("args", [("events",), ("events", "-o", "tree"), ("deadletters",)], ids=" ".join)
def test_unsafe_text_in_recorded_events_is_escaped(unsafe_journal: Path, args: tuple[str, ...]) -> None:
    """Check that text in recorded events is escaped, because any client that may post events controls this text."""
    result = CliRunner().invoke(cli, [*args, "--journal", str(unsafe_journal)], color=False)

    assert result.exit_code == 0, result.exception
    assert result.stdout.count(ESCAPED_TEXT) >= 2
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout
