"""Unit tests of how maintenances are displayed on a terminal."""

from __future__ import annotations

from datetime import datetime, timezone
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from console.operations.descriptions import phase_word, remedy
from console.terminal.maintenance_display import awaited, bar, details, line, overview

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
SINCE = "2026-01-01T11:50:00Z"
BLOCKED = {
    "namespace": "shop",
    "name": "web-1",
    "reason": "DisruptionBudget",
    "budget": "web",
    "healthy": 2,
    "needed": 2,
}


def maintenance(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "nodemaintenance.medik8s.io/v1beta1",
        "kind": "NodeMaintenance",
        "metadata": {"name": "disk", "uid": "1", "creationTimestamp": SINCE},
        "spec": {"nodeName": "node-1", "reason": "new [disk]"},
        "status": status,
    }


RUNNING = maintenance(
    phase="Running",
    drainProgress=40,
    evictionPods=5,
    pendingPods=["web-1", "web-2", "db"],
    pendingPodsRefs=[{"namespace": "shop", "name": name} for name in ("web-1", "web-2", "db")],
    blockedPods=[{**BLOCKED, "since": SINCE, "message": "said"}],
    lastError="shop/web-1: said",
)


def text(shown: RenderableType, width: int = 200) -> str:
    out = StringIO()
    Console(file=out, width=width).print(shown)
    return out.getvalue()


def test_the_table_has_a_row_per_maintenance() -> None:
    head, row = text(overview([RUNNING], NOW)).splitlines()

    assert head.split() == ["NODE", "PHASE", "PROGRESS", "PENDING", "BLOCKED", "AGE", "REASON"]
    assert row.split() == ["node-1", "Running", "━" * 8 + "─" * 12, "40%", "3", "1", "10m", "new", "[disk]"]


def test_why_one_failed_is_below_the_table_and_in_its_line() -> None:
    failed = maintenance(phase="Failed", lastError="there is no node node-1")

    *_, below = text(overview([RUNNING, failed], NOW)).splitlines()

    assert below == "nodemaintenance.nodemaintenance.medik8s.io/disk failed: there is no node node-1"
    assert line(failed) == "node-1 Failed 0% 0 pending, 0 blocked: there is no node node-1"
    assert "web-1: said" not in text(overview([RUNNING], NOW))


def test_why_one_does_not_begin_is_below_the_table_and_in_its_line() -> None:
    """NMO-27a: A maintenance without a phase is shown with the reason, such as a lease of another tool."""
    waiting = maintenance(lastError="the lease is held by another-tool")

    *_, below = text(overview([waiting, maintenance()], NOW)).splitlines()

    assert below == "nodemaintenance.nodemaintenance.medik8s.io/disk waits: the lease is held by another-tool"
    assert line(waiting) == "node-1 Waiting 0% 0 pending, 0 blocked: the lease is held by another-tool"


def test_what_holds_one_up_is_below_it_where_somebody_waits_and_in_its_line() -> None:
    two = maintenance(phase="Running", blockedPods=[{**BLOCKED, "message": "said"}, BLOCKED])

    *_, below = text(awaited(two, NOW)).splitlines()

    assert below == "nodemaintenance.nodemaintenance.medik8s.io/disk waits: shop/web-1: said (and 1 more)"
    assert line(two) == "node-1 Running 0% 0 pending, 2 blocked: shop/web-1: said (and 1 more)"
    assert len(text(awaited(maintenance(phase="Running"), NOW)).splitlines()) == 2


@pytest.mark.parametrize("after", ["2026-01-01T12:01:05Z", "2026-01-01T13:01:05.5+01:00"])
def test_what_is_tried_again_says_when(after: str) -> None:
    """Check that a pod that is retried later is shown with the time, as after a policy's denial or its recreation."""
    assert remedy({**BLOCKED, "retryAfter": after}) == f"{remedy(BLOCKED)}; tried again at 12:01:05 UTC"
    assert remedy({**BLOCKED, "retryAfter": "soon"}) == remedy(BLOCKED)


def test_no_maintenance_is_said() -> None:
    assert text(overview([], NOW)) == "No maintenance.\n"


def test_the_details_tell_blocked_pods_from_those_on_their_way() -> None:
    shown = text(details("node-1", "cordoned, takes no new pods", [RUNNING], NOW))

    blocked, pending = shown.split("PENDING")
    assert "3 of 5 pods left, created 10m ago" in blocked  # the maintenance may have begun long after its creation
    assert "Last error: shop/web-1: said" in blocked
    assert "shop/web-1" in blocked.split("BLOCKED")[1]
    assert pending.split() == ["shop/web-2", "shop/db"]


def test_on_a_narrow_terminal_no_name_and_no_command_is_broken() -> None:
    """Check that a narrow terminal shows names and commands in one piece, where a table would break them."""
    item, error = "shop/web-6c9bff56b7-fsp2j-of-a-stateful-set", "MultipleBudgets"
    blocked = [{**BLOCKED, "name": item.partition("/")[2], "since": SINCE, "message": "said"}]
    running = maintenance(phase="Running", evictionPods=1, blockedPods=[*blocked, {**blocked[0], "reason": error}])

    narrow = text(details("node-1", "cordoned", [running], NOW), 80).split("BLOCKED")[1].splitlines()
    wide = text(details("node-1", "cordoned", [running], NOW)).split("BLOCKED")[1].splitlines()

    assert [line.strip() for line in narrow[1:3]] == [
        item,
        "DisruptionBudget, under web, 2/2 healthy/needed, for 10m",
    ]
    assert "kubectl -n shop edit pdb web" in [line.strip() for line in narrow]
    assert narrow.count(item) == 2
    assert len(wide) == 3
    for width in range(60, 200):
        shown = text(details("node-1", "cordoned", [running], NOW), width)
        assert shown.count(item) == 2, width
        assert shown.count(error) == 1, width


@pytest.mark.parametrize("percent", [0, 1, 50, 99, 100])
def test_a_bar_is_always_as_long(percent: int) -> None:
    assert len(bar(percent).plain) == len(bar(0).plain)


def test_before_and_after_the_phases_there_is_a_word_too() -> None:
    ending = maintenance(phase="Running")
    ending["metadata"]["deletionTimestamp"] = SINCE

    assert [phase_word(maintenance()), phase_word(ending)] == ["Waiting", "Ending"]
    assert line(maintenance()) == "node-1 Waiting 0% 0 pending, 0 blocked"
