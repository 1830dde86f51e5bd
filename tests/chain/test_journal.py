"""Tests of the journal after a real drain."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.cli import commands
from eventing import events
from eventing.journal.store import Journal, Query
from localcluster.processes import await_ready
from localcluster.servers import ROOT
from tests.chain.environment import Scene
from tests.machine_speed import is_below


def test_a_drain_is_recorded_with_every_run(scene: Scene) -> None:
    """X-6: the journal has each event of a maintenance with the function calls that handled it and their replies."""
    path = scene.maintain_with_pods(scene.node(), 3)
    uid = scene.admin.get(path)["metadata"]["uid"]
    steps = {
        events.RESOURCE_ADDED: "begin",
        events.MAINTENANCE_BEGUN: "cordon",
        events.NODE_CORDONED: "taint",
        events.NODE_TAINTED: "evict",
        events.NODE_DRAINED: "status",
    }

    with closing(Journal(scene.product.journal)) as book:

        def runs() -> set[tuple[str, str]]:
            found = book.select(Query(maintenance=uid))
            return {(entry.event.get_type(), made.function) for entry in found for made in entry.attempts}

        await_ready("the drain's runs", lambda: set(steps.items()) <= runs(), [], 10)
        recorded = book.select(Query(maintenance=uid))

    answered = {reply["id"] for entry in recorded for made in entry.attempts for reply in made.replies}
    known = {entry.event.get_id() for entry in recorded}
    assert answered
    assert answered <= known
    assert all(made.status in (200, 204) for entry in recorded for made in entry.attempts)
    scene.delete(path)
    scene.gone(path)


@pytest.fixture
def large(scene: Scene) -> str:
    """Return the name of a maintenance that drained 100 pods and was deleted."""
    path = scene.maintain_with_pods(scene.node(), 100)
    scene.delete(path)
    scene.gone(path)
    return path.rsplit("/", 1)[-1]


@pytest.mark.slow
def test_the_tree_of_a_large_drain_is_there_at_once(scene: Scene, large: str) -> None:
    """Check that `events -o tree` prints a drain of 100 pods in under 0.3 s, without the interpreter's start."""
    line = ["events", "--journal", str(scene.product.journal), "--maintenance", large, "-o", "tree"]

    took = []
    for _ in range(5):
        started = time.perf_counter()
        result = CliRunner().invoke(commands, line)
        took.append(time.perf_counter() - started)
        assert result.exit_code == 0, result.output
    started = time.perf_counter()
    subprocess.run(
        [Path(sys.executable).with_name("kubectl-maintenance"), *line], cwd=ROOT, check=True, capture_output=True
    )

    whole = time.perf_counter() - started
    count = len(result.stdout.splitlines())
    print(f"the tree of 100 pods, {count} lines: {min(took):.3f} s; with the interpreter's start {whole:.3f} s")
    assert "node.drained" in result.stdout
    assert is_below(min(took), 0.3)
