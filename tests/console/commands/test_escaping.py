"""Tests that text from users and other programs is printed without markup, and with escaped control characters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from cloudevents.core.v1.event import CloudEvent

from console.cli import commands
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal
from kube.maintenance.groups import MEDIK8S
from localcluster.cluster import LocalCluster
from tests.console.conftest import Run

EVIL = "[/] [red] \x1b[2J\u202e"
SHOWN = "[/] [red] \\x1b[2J\\u202e"


@pytest.fixture(scope="module")
def foreign(installed: LocalCluster) -> Iterator[str]:
    """Yield after creating a maintenance whose node name, reason and error contain markup and control characters."""
    metadata = {"name": "foreign-text"}
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": metadata}
    installed.kubectl("create", "-f", "-", input=json.dumps({**body, "spec": {"nodeName": EVIL, "reason": EVIL}}))
    failed = {"status": {"phase": "Failed", "lastError": f"{EVIL}\nsecond line"}}
    words = ("nodemaintenances.nodemaintenance.medik8s.io", "foreign-text", "--type=merge", "--subresource=status")
    installed.kubectl("patch", *words, "-p", json.dumps(failed))
    yield "foreign-text"
    installed.kubectl("delete", *words[:2])


@pytest.mark.parametrize("words", [("status",), ("status", EVIL)], ids=["all", "one node"])
def test_status_shows_them_as_they_are(run: Run, foreign: str, words: tuple[str, ...]) -> None:
    """Check that `status` escapes unsafe text; `nodeName: "[/]"` once caused a traceback."""
    result = run(*words)

    assert result.exit_code == 0, result.exception
    assert result.stdout.count(SHOWN) >= 2
    assert f"{SHOWN}\\nsecond line" in result.stdout
    assert "\x1b" not in result.stdout


def test_an_error_shows_them_too(run: Run) -> None:
    """Check that an error message escapes unsafe text and is one line."""
    result = run("start", "no-such-node\x1b]0;title\x07")

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: there is no node no-such-node\\x1b]0;title\\x07: ")
    assert result.stderr.count("\n") == 1


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return a journal whose event and dead letter contain unsafe text in every field that allows it."""
    file = tmp_path / "journal.db"
    fields = {"id": f"id{EVIL}", "source": "/test", "type": f"dev.nodemaintenance.{EVIL}", "node": EVIL}
    event = CloudEvent({**fields, "maintenance": "uid-1", "subject": EVIL}, {})
    letter = as_dead_letter(CloudEvent({**fields, "id": "dead"}, {}), DeadLetter(f"http://x/{EVIL}", 400, EVIL))
    with closing(Journal(file)) as book:
        book.write(event)
        book.write(letter)
        at = book.select()[0].arrived
        book.write_attempts([Attempt("/test", event.get_id(), EVIL, at, 0.1, 500, error=EVIL)])
    return file


@pytest.mark.parametrize("words", [("events",), ("events", "-o", "tree"), ("deadletters",)], ids=" ".join)
def test_recorded_events_show_them_too(journal: Path, words: tuple[str, ...]) -> None:
    """Check that recorded events are escaped, since any client that may post an event chooses its content."""
    result = CliRunner().invoke(commands, [*words, "--journal", str(journal)], color=False)

    assert result.exit_code == 0, result.exception
    assert result.stdout.count(SHOWN) >= 2
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout
