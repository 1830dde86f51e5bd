"""`make demo-vm` drains a node with virtual machines; its exit status reports whether each behaved as expected."""

from __future__ import annotations

import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from kube.paths import Object
from localcluster.demo import vm
from localcluster.demo.vm import FORETOLD, NODE_COUNT, STUCK
from localcluster.demo.common import DemoError, drain_line, tell
from localcluster.demo.uptimes import Uptime, counters, outcomes, told, uptime
from tests.localcluster.commands import ROOT
from tests.proofs import proves

pytestmark = pytest.mark.slow

SECONDS = 180
FIRST, SECOND = "2026-01-01T00:00:00Z in a", "2026-01-01T00:00:30Z in b"
NOW = datetime(2026, 1, 1, 0, 0, 42, tzinfo=timezone.utc)
HERE, THERE = Uptime("node-1", FIRST), Uptime("node-2", FIRST)
ANEW, DOWN = Uptime("node-2", SECOND), Uptime()


def instance(phase: str) -> Object:
    metadata = {"name": "live", "annotations": {"fake-virt/booted": FIRST}}
    return {"metadata": metadata, "status": {"phase": phase, "nodeName": "node-1"}}


def test_a_machine_is_up_from_its_boot_until_it_stops() -> None:
    """Check that a VM's uptime counts from its boot, on its node, until it stops."""
    assert [uptime(instance("Running")), uptime(instance("Failed"))] == [HERE, DOWN]
    assert counters({"b": ANEW, "a": HERE, "c": DOWN}, NOW) == "a up 42 s on node-1   b up 12 s on node-2   c down"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (DOWN, DOWN, ""),
        (HERE, HERE, ""),
        (DOWN, HERE, "boots on node-1"),
        (HERE, DOWN, "is shut down"),
        (HERE, ANEW, "boots anew on node-2"),
        (HERE, THERE, "moves from node-1 to node-2 without a break"),
    ],
)
def test_what_becomes_of_a_machine_is_said_once(before: Uptime, after: Uptime, words: str) -> None:
    assert told(before, after) == words


@pytest.mark.parametrize(
    ("drain", "good"), [("moves", [THERE]), ("blocks", [THERE]), ("restarts", [ANEW]), ("stops", [DOWN])]
)
def test_what_was_foretold_and_did_not_come_is_an_error(drain: str, good: list[Uptime]) -> None:
    """Check that an outcome that differs from the preview is an error."""
    for after in (HERE, THERE, ANEW, DOWN, Uptime("node-1", SECOND)):
        if after in good:
            assert [line.split()[:2] for line in outcomes("node-1", {"vm": drain}, {"vm": HERE}, {"vm": after})] == [
                ["vm", drain]
            ]
        else:
            with pytest.raises(DemoError, match=f"of vm the preview said that it {drain}"):
                list(outcomes("node-1", {"vm": drain}, {"vm": HERE}, {"vm": after}))


def test_the_status_is_one_line() -> None:
    """Check that the line has the progress of the drain and one blocked pod."""
    assert drain_line({}) == f"new       {'░' * 20}   0 %  ? pods left"
    blocked = [{"name": "pinned", "message": "no disk"}]
    status: Object = {"phase": "Running", "drainProgress": 80, "pendingCount": 1, "blockedPods": blocked}
    assert drain_line(status) == f"Running   {'█' * 16}{'░' * 4}  80 %  1 pod left; 1 blocked, e.g. pinned: no disk"


@proves("DRN-16", "OSV-2", "OSV-3")
def test_the_demo_drains_a_node_with_machines_of_each_kind() -> None:
    """Check that the demo exits with status 0: each VM behaved as previewed, and the blocked one could leave later.

    The CPU labels changed, and everything that was started is stopped.
    """
    words = ["make", "--no-print-directory", "demo-vm"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)

    assert done.returncode == 0, done.stdout + done.stderr
    _, _, ending = done.stdout.partition("── What was said before")
    assert dict(re.findall(r"^  (\w+) +(moves|blocks|restarts|stops) ", ending, re.MULTILINE)) == FORETOLD
    assert re.search(rf"^demo/virt-launcher-{STUCK}-\S+ +NotMigratable ", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^node-\d .* true +true *$", ending, re.MULTILINE)) == NODE_COUNT
    assert len(re.findall(r"^node-\d .* kwok +true *$", ending, re.MULTILINE)) == NODE_COUNT
    assert done.stdout.endswith("• everything that was started is stopped\n")


@proves("DRN-16")
def test_a_story_that_goes_otherwise_is_told_as_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that the demo fails if a VM is shut down although the preview promised a migration."""
    other = tmp_path / "machines.yaml"
    other.write_text(vm.STORY.read_text().replace("evictionStrategy: LiveMigrate, ", "", 1))
    monkeypatch.setattr(vm, "STORY", other)
    monkeypatch.setattr(vm, "_preview", lambda _cluster: None)

    with pytest.raises(SystemExit) as ended:
        tell(vm.main)
    assert "of live the preview said that it moves" in str(ended.value.code)
