"""Tests for `make demo-vm`, which drains a node with VMs, and exits with 0 if each VM behaves as predicted."""

from __future__ import annotations

import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from kube.paths import Object
from localcluster.demo import vm
from localcluster.demo.common import DemoError, format_drain_status, run_demo
from localcluster.demo.vm import (
    BLOCKED_VM,
    NODE_COUNT,
    PREVIEW,
    Uptime,
    check_outcomes,
    describe_uptime_change,
    format_uptimes,
    read_uptime,
)
from tests.localcluster.commands import ROOT
from tests.proofs import proves

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 180
FIRST_BOOT, SECOND_BOOT = "2026-01-01T00:00:00Z in a", "2026-01-01T00:00:30Z in b"
NOW = datetime(2026, 1, 1, 0, 0, 42, tzinfo=timezone.utc)
ON_NODE_1, ON_NODE_2 = Uptime("node-1", FIRST_BOOT), Uptime("node-2", FIRST_BOOT)
REBOOTED_ON_NODE_2, DOWN = Uptime("node-2", SECOND_BOOT), Uptime()


def build_vmi_in_phase(phase: str) -> Object:
    metadata = {"name": "live", "annotations": {"fake-virt/booted": FIRST_BOOT}}
    return {"metadata": metadata, "status": {"phase": phase, "nodeName": "node-1"}}


def test_uptime_of_vm_is_counted_from_boot() -> None:
    """Check that a VM's uptime is counted from its boot until it is stopped."""
    assert [read_uptime(build_vmi_in_phase("Running")), read_uptime(build_vmi_in_phase("Failed"))] == [ON_NODE_1, DOWN]
    assert (
        format_uptimes({"b": REBOOTED_ON_NODE_2, "a": ON_NODE_1, "c": DOWN}, NOW)
        == "a up 42 s on node-1   b up 12 s on node-2   c down"
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (DOWN, DOWN, ""),
        (ON_NODE_1, ON_NODE_1, ""),
        (DOWN, ON_NODE_1, "boots on node-1"),
        (ON_NODE_1, DOWN, "is shut down"),
        (ON_NODE_1, REBOOTED_ON_NODE_2, "reboots on node-2"),
        (ON_NODE_1, ON_NODE_2, "moves from node-1 to node-2 without interruption"),
    ],
)
def test_change_of_vm_is_described(before: Uptime, after: Uptime, expected: str) -> None:
    assert describe_uptime_change(before, after) == expected


@pytest.mark.parametrize(
    ("forecast", "matching_outcomes"),
    [("moves", [ON_NODE_2]), ("blocks", [ON_NODE_2]), ("restarts", [REBOOTED_ON_NODE_2]), ("stops", [DOWN])],
)
def test_demo_fails_if_outcome_differs_from_preview(forecast: str, matching_outcomes: list[Uptime]) -> None:
    """Check that the demo fails if a VM does not behave as the preview has predicted."""
    for after in (ON_NODE_1, ON_NODE_2, REBOOTED_ON_NODE_2, DOWN, Uptime("node-1", SECOND_BOOT)):
        if after in matching_outcomes:
            assert [
                line.split()[:2]
                for line in check_outcomes("node-1", {"vm": forecast}, {"vm": ON_NODE_1}, {"vm": after})
            ] == [["vm", forecast]]
        else:
            with pytest.raises(DemoError, match=f'virtual machine "vm": the preview forecast is {forecast}'):
                list(check_outcomes("node-1", {"vm": forecast}, {"vm": ON_NODE_1}, {"vm": after}))


def test_drain_status_is_one_line() -> None:
    """Check that the status line shows the drain's progress and one of the blocked pods."""
    assert format_drain_status({}) == f"new       {'░' * 20}   0 %  ? pods left"
    blocked_pods = [{"name": "pinned", "message": "no disk"}]
    status: Object = {"phase": "Running", "drainProgress": 80, "pendingCount": 1, "blockedPods": blocked_pods}
    assert (
        format_drain_status(status)
        == f"Running   {'█' * 16}{'░' * 4}  80 %  1 pod left; 1 blocked, e.g. pinned: no disk"
    )


@proves("DRN-16", "OSV-2", "OSV-3")
def test_demo_drains_node_with_vm_of_each_kind() -> None:
    """Check that the demo succeeds if each VM behaves as predicted, and the blocked VM leaves the node later.

    The demo changes the CPU labels, and stops everything that it has started.
    """
    command = ["make", "--no-print-directory", "demo-vm"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)

    assert result.returncode == 0, result.stdout + result.stderr
    _, _, outcome = result.stdout.partition("── The forecast and the outcome")
    assert dict(re.findall(r"^  (\w+) +(moves|blocks|restarts|stops) ", outcome, re.MULTILINE)) == PREVIEW
    assert re.search(r"^ +1 pod for \S+, NotMigratable: ", result.stdout, re.MULTILINE)
    assert re.search(rf"^ +demo/virt-launcher-{BLOCKED_VM}-\S+$", result.stdout, re.MULTILINE)
    assert len(re.findall(r"^node-\d .* true +true *$", outcome, re.MULTILINE)) == NODE_COUNT
    assert len(re.findall(r"^node-\d .* kwok +true *$", outcome, re.MULTILINE)) == NODE_COUNT
    assert result.stdout.endswith("• everything that was started is stopped\n")


@proves("DRN-16")
def test_demo_fails_if_vm_does_not_migrate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that the demo fails if a VM is shut down although the preview has predicted a migration."""
    vms_file = tmp_path / "machines.yaml"
    vms_file.write_text(vm.VMS_MANIFEST.read_text().replace("evictionStrategy: LiveMigrate, ", "", 1))
    monkeypatch.setattr(vm, "VMS_MANIFEST", vms_file)
    monkeypatch.setattr(vm, "_check_preview", lambda _cluster: None)

    with pytest.raises(SystemExit) as raised:
        run_demo(vm.main)
    assert 'virtual machine "live": the preview forecast is moves' in str(raised.value.code)
