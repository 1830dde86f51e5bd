"""Tests that text from users and other programs is printed without markup, and with escaped control characters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from cloudevents.core.v1.event import CloudEvent

from console.cli import cli
from eventing.dead_letters import DeadLetter, to_dead_letter
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal
from kube.maintenance.groups import MEDIK8S
from localcluster.cluster import LocalCluster
from tests.console.conftest import RunCommand

UNSAFE_TEXT = "[/] [red] \x1b[2J\u202e"
ESCAPED_TEXT = "[/] [red] \\x1b[2J\\u202e"


@pytest.fixture(scope="module")
def unsafe_maintenance(installed_cluster: LocalCluster) -> Iterator[str]:
    """Yield after creating a maintenance whose node name, reason and error contain markup and control characters."""
    metadata = {"name": "foreign-text"}
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": metadata}
    installed_cluster.kubectl(
        "create", "-f", "-", input=json.dumps({**body, "spec": {"nodeName": UNSAFE_TEXT, "reason": UNSAFE_TEXT}})
    )
    failed = {"status": {"phase": "Failed", "lastError": f"{UNSAFE_TEXT}\nsecond line"}}
    arguments = ("nodemaintenances.nodemaintenance.medik8s.io", "foreign-text", "--type=merge", "--subresource=status")
    installed_cluster.kubectl("patch", *arguments, "-p", json.dumps(failed))
    yield "foreign-text"
    installed_cluster.kubectl("delete", *arguments[:2])


@pytest.mark.parametrize("words", [("status",), ("status", UNSAFE_TEXT)], ids=["all", "one node"])
def test_status_escapes_unsafe_text(run_command: RunCommand, unsafe_maintenance: str, words: tuple[str, ...]) -> None:
    """Check that `status` escapes unsafe text; `nodeName: "[/]"` once caused a traceback."""
    result = run_command(*words)

    assert result.exit_code == 0, result.exception
    assert result.stdout.count(ESCAPED_TEXT) >= 2
    assert f"{ESCAPED_TEXT}\\nsecond line" in result.stdout
    assert "\x1b" not in result.stdout


def test_error_message_escapes_unsafe_text(run_command: RunCommand) -> None:
    """Check that an error message escapes unsafe text and is one line."""
    result = run_command("start", "no-such-node\x1b]0;title\x07")

    assert result.exit_code == 1
    assert result.stderr.startswith('Error: node "no-such-node\\x1b]0;title\\x07" not found: ')
    assert result.stderr.count("\n") == 1


@pytest.fixture
def unsafe_journal(tmp_path: Path) -> Path:
    """Return a journal whose event and dead letter contain unsafe text in every field that allows it."""
    file = tmp_path / "journal.db"
    fields = {
        "id": f"id{UNSAFE_TEXT}",
        "source": "/test",
        "type": f"dev.nodemaintenance.{UNSAFE_TEXT}",
        "node": UNSAFE_TEXT,
    }
    event = CloudEvent({**fields, "maintenance": "uid-1", "subject": UNSAFE_TEXT}, {})
    dead_letter = to_dead_letter(
        CloudEvent({**fields, "id": "dead"}, {}), DeadLetter(f"http://x/{UNSAFE_TEXT}", 400, UNSAFE_TEXT)
    )
    with closing(Journal(file)) as journal:
        journal.write_event(event)
        journal.write_event(dead_letter)
        arrived = journal.select()[0].arrived
        journal.write_attempts([Attempt("/test", event.get_id(), UNSAFE_TEXT, arrived, 0.1, 500, error=UNSAFE_TEXT)])
    return file


@pytest.mark.parametrize("words", [("events",), ("events", "-o", "tree"), ("deadletters",)], ids=" ".join)
def test_recorded_events_escape_unsafe_text(unsafe_journal: Path, words: tuple[str, ...]) -> None:
    """Check that recorded events are escaped, since any client that may post an event chooses its content."""
    result = CliRunner().invoke(cli, [*words, "--journal", str(unsafe_journal)], color=False)

    assert result.exit_code == 0, result.exception
    assert result.stdout.count(ESCAPED_TEXT) >= 2
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout
