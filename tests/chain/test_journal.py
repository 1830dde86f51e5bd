"""Tests for the journal after a real drain."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.cli import cli
from eventing import events
from eventing.journal.store import Journal, Query
from localcluster.processes import wait_until_ready
from localcluster.servers import ROOT
from tests.chain.environment import EventChainEnvironment
from tests.machine_speed import is_below_scaled_limit


def test_journal_contains_every_function_call_of_drain(environment: EventChainEnvironment) -> None:
    """X-6: the journal contains a maintenance's events, and the function calls for them with their replies."""
    path = environment.drain_node_with_pods(environment.create_node(), 3)
    uid = environment.client.get(path)["metadata"]["uid"]
    expected_calls = {
        events.RESOURCE_ADDED: "begin",
        events.MAINTENANCE_BEGUN: "cordon",
        events.NODE_CORDONED: "taint",
        events.NODE_TAINTED: "evict",
        events.NODE_DRAINED: "status",
    }

    with closing(Journal(environment.product.journal)) as journal:

        def read_calls() -> set[tuple[str, str]]:
            entries = journal.select(Query(maintenance=uid))
            return {(entry.event.get_type(), attempt.function) for entry in entries for attempt in entry.attempts}

        wait_until_ready("the drain's attempts", lambda: set(expected_calls.items()) <= read_calls(), [], 10)
        recorded = journal.select(Query(maintenance=uid))

    reply_ids = {reply["id"] for entry in recorded for attempt in entry.attempts for reply in attempt.replies}
    recorded_ids = {entry.event.get_id() for entry in recorded}
    assert reply_ids
    assert reply_ids <= recorded_ids
    assert all(attempt.status in (200, 204) for entry in recorded for attempt in entry.attempts)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@pytest.fixture
def large_drain(environment: EventChainEnvironment) -> str:
    """Return the name of a deleted maintenance that has drained 100 pods."""
    path = environment.drain_node_with_pods(environment.create_node(), 100)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    return path.rsplit("/", 1)[-1]


@pytest.mark.slow
def test_event_tree_of_large_drain_is_printed_quickly(environment: EventChainEnvironment, large_drain: str) -> None:
    """Check that `events -o tree` prints a drain of 100 pods within 0.3 s, excluding the interpreter's startup."""
    arguments = ["events", "--journal", str(environment.product.journal), "--maintenance", large_drain, "-o", "tree"]

    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        result = CliRunner().invoke(cli, arguments)
        seconds.append(time.perf_counter() - started)
        assert result.exit_code == 0, result.output
    started = time.perf_counter()
    subprocess.run(
        [Path(sys.executable).with_name("kubectl-maintenance"), *arguments], cwd=ROOT, check=True, capture_output=True
    )

    elapsed = time.perf_counter() - started
    line_count = len(result.stdout.splitlines())
    print(f"tree of 100 pods, {line_count} lines: {min(seconds):.3f} s; with interpreter startup: {elapsed:.3f} s")
    assert "node.drained" in result.stdout
    assert is_below_scaled_limit(min(seconds), 0.3)
