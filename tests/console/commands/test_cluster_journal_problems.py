"""Tests for `events` if the console has no journal, an empty one, or one in PostgreSQL, and for rejected imports."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from cloudevents.core.v1.event import CloudEvent

from console.cli import cli
from eventing.journal.store import Journal
from localcluster.cluster import LocalCluster
from tests.console.conftest import RunCommand
from tests.console.journal_service import run_journal_service
from tests.postgresql import PostgreSQL


@pytest.mark.parametrize(
    ("has_file", "exit_code", "message"),
    [(True, 0, "The journal contains no events yet.\n"), (False, 2, "the console has no journal that it can read")],
    ids=["empty", "none"],
)
def test_empty_or_missing_journal_is_reported(
    served_cluster: LocalCluster,
    run_command: RunCommand,
    tmp_path: Path,
    has_file: bool,
    exit_code: int,
    message: str,
) -> None:
    file = tmp_path / "empty.db"
    if has_file:
        Journal(file).close()

    with run_journal_service(served_cluster, tmp_path, *(["--journal", str(file)] if has_file else [])):
        result = run_command("events", "--journal", "cluster")

    assert result.exit_code == exit_code, result.output
    assert message in result.output


@pytest.mark.slow
def test_journal_in_postgresql_is_read(
    served_cluster: LocalCluster, run_command: RunCommand, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    """Check that the journal API serves a PostgreSQL journal, the only kind of journal that a cluster can have."""
    url = postgresql.create_database()
    with closing(Journal(url)) as journal:
        journal.write_event(CloudEvent({"id": "first", "source": "/test", "type": "dev.example.done"}, {"text": "é"}))
        journal.write_event(CloudEvent({"id": "second", "source": "/test", "type": "dev.example.done"}, {}))

    with run_journal_service(served_cluster, tmp_path, "--journal", url):
        result = run_command("events", "--journal", "cluster", "-o", "json")

    assert [entry["event"]["id"] for entry in json.loads(result.stdout)] == ["first", "second"], result.output


def test_import_into_journal_of_cluster_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.touch()

    result = CliRunner().invoke(cli, ["events", "--journal", "cluster", "--import", str(file)])

    assert result.exit_code == 2
    assert "the cluster's journal accepts no import: name a file or a database with --journal" in result.output
