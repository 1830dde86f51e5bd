"""Tests for the display of maintenances on a terminal."""

from __future__ import annotations

from datetime import datetime, timezone
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from console.operations.descriptions import get_phase_label
from console.terminal.maintenance_display import (
    format_line,
    render_awaited_maintenances,
    render_bar,
    render_details,
    render_overview,
)
from kube.maintenance.objects import ENDER_ANNOTATION, REQUESTER_ANNOTATION

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
TEN_MINUTES_AGO = "2026-01-01T11:50:00Z"
BLOCKED_POD = {
    "namespace": "shop",
    "name": "web-1",
    "reason": "DisruptionBudget",
    "budget": "web",
    "healthy": 2,
    "needed": 2,
}


def build_maintenance(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "nodemaintenance.medik8s.io/v1beta1",
        "kind": "NodeMaintenance",
        "metadata": {"name": "disk", "uid": "1", "creationTimestamp": TEN_MINUTES_AGO},
        "spec": {"nodeName": "node-1", "reason": "new [disk]"},
        "status": status,
    }


RUNNING_MAINTENANCE = build_maintenance(
    phase="Running",
    drainProgress=40,
    evictionPods=5,
    pendingPods=["web-1", "web-2", "db"],
    pendingPodsRefs=[{"namespace": "shop", "name": name} for name in ("web-1", "web-2", "db")],
    blockedPods=[{**BLOCKED_POD, "since": TEN_MINUTES_AGO, "message": "needs 2"}],
    lastError="shop/web-1: needs 2",
)


def render_text(renderable: RenderableType, width: int = 200) -> str:
    output = StringIO()
    Console(file=output, width=width).print(renderable)
    return output.getvalue()


def test_table_has_one_row_per_maintenance() -> None:
    header, row = render_text(render_overview([RUNNING_MAINTENANCE], NOW)).splitlines()

    assert header.split() == ["NODE", "PHASE", "PROGRESS", "PENDING", "BLOCKED", "AGE", "REASON"]
    assert row.split() == ["node-1", "Running", "━" * 8 + "─" * 12, "40%", "3", "1", "10m", "new", "[disk]"]


def test_details_name_users_who_requested_and_ended_maintenance() -> None:
    maintenance = build_maintenance(phase="Running")
    maintenance["metadata"] |= {
        "annotations": {REQUESTER_ANNOTATION: "mary", ENDER_ANNOTATION: "joe"},
        "deletionTimestamp": TEN_MINUTES_AGO,
    }

    lines = render_text(render_details("node-1", "cordoned", [maintenance], NOW)).splitlines()

    assert lines[-1].strip() == "Requested by mary; ended by joe"


def test_details_show_passed_deadline_and_current_escalation_step() -> None:
    """Check that the details show the passed deadline and the current escalation step, while the spec contains it."""
    step = {"after": "30m", "action": "Delete"}
    conditions = [{"type": "Drained", "status": "False", "reason": "DeadlineExceeded"}]
    maintenance = build_maintenance(
        phase="Running", escalation={**step, "time": TEN_MINUTES_AGO}, conditions=conditions, evictionPods=1
    )
    texts = []
    for drain in ({"deadline": "1h", "escalation": [step]}, {"deadline": "1h"}, None):
        maintenance["spec"]["drain"] = drain
        texts.append(render_text(render_details("node-1", "cordoned", [maintenance], NOW)).splitlines()[-1].strip())

    effect = "pods that cannot be evicted are deleted, regardless of their disruption budgets"
    late = "Not drained within the deadline of 1h"
    assert texts[:2] == [f"{late}; Step Delete of the escalation for 10m: {effect}", late]
    assert "deadline" not in texts[2]


def test_long_reason_is_cut_with_number_of_omitted_characters() -> None:
    """Check that a reason of 5,000 characters takes one line of the table, and a few lines of the details."""
    maintenance = build_maintenance(phase="Running")
    maintenance["spec"]["reason"] = "word " * 1000

    table = render_text(render_overview([maintenance], NOW))
    details = render_text(render_details("node-1", "cordoned", [maintenance], NOW), 80)

    assert len(table.splitlines()) == 2
    assert table.rstrip().endswith("… (4940 more characters)")
    assert len(details.splitlines()) <= 10
    assert "(4700 more characters)" in " ".join(details.split())


def test_reason_of_failed_maintenance_is_shown_below_table_and_in_progress_line() -> None:
    failed = build_maintenance(phase="Failed", lastError='nodes "node-1" not found')

    *_, last_line = render_text(render_overview([RUNNING_MAINTENANCE, failed], NOW)).splitlines()

    assert last_line == 'nodemaintenance.nodemaintenance.medik8s.io/disk failed: nodes "node-1" not found'
    assert format_line(failed) == 'node-1 Failed 0% 0 pending, 0 blocked: nodes "node-1" not found'
    assert "web-1: needs 2" not in render_text(render_overview([RUNNING_MAINTENANCE], NOW))


def test_reason_of_waiting_maintenance_is_shown_below_table_and_in_progress_line() -> None:
    """NMO-27a: A maintenance without a phase is shown with the reason, such as a Lease that another tool holds."""
    waiting_maintenance = build_maintenance(lastError="the lease is held by another-tool")

    *_, last_line = render_text(render_overview([waiting_maintenance, build_maintenance()], NOW)).splitlines()

    assert last_line == "nodemaintenance.nodemaintenance.medik8s.io/disk waits: the lease is held by another-tool"
    assert (
        format_line(waiting_maintenance) == "node-1 Waiting 0% 0 pending, 0 blocked: the lease is held by another-tool"
    )


def test_drain_with_failed_step_is_shown_as_failing_with_error() -> None:
    """X-6: A drain whose latest step failed is not shown as running; an error about blocked pods or the lease is."""
    failing = build_maintenance(phase="Running", lastError='nodes "node-1" is forbidden')
    without_lease = build_maintenance(phase="Running", lastError="cannot renew the lease", errorOnLeaseCount=1)

    *_, last_line = render_text(render_overview([RUNNING_MAINTENANCE, failing], NOW)).splitlines()

    assert last_line == 'nodemaintenance.nodemaintenance.medik8s.io/disk fails: nodes "node-1" is forbidden'
    assert format_line(failing) == 'node-1 Failing 0% 0 pending, 0 blocked: nodes "node-1" is forbidden'
    assert [get_phase_label(item) for item in (RUNNING_MAINTENANCE, without_lease)] == ["Running", "Running"]


def test_blocked_pods_are_shown_below_progress_bar_and_in_progress_line() -> None:
    blocked_maintenance = build_maintenance(
        phase="Running", blockedPods=[{**BLOCKED_POD, "message": "needs 2"}, BLOCKED_POD]
    )

    *_, last_line = render_text(render_awaited_maintenances([blocked_maintenance], NOW)).splitlines()

    assert last_line == "nodemaintenance.nodemaintenance.medik8s.io/disk waits: shop/web-1: needs 2 (and 1 more)"
    assert (
        format_line(blocked_maintenance) == "node-1 Running 0% 0 pending, 2 blocked: shop/web-1: needs 2 (and 1 more)"
    )
    assert len(render_text(render_awaited_maintenances([build_maintenance(phase="Running")], NOW)).splitlines()) == 2


def test_empty_overview_is_reported() -> None:
    assert render_text(render_overview([], NOW)) == "No maintenances found.\n"


def test_details_separate_blocked_and_pending_pods() -> None:
    text = render_text(render_details("node-1", "cordoned, takes no new pods", [RUNNING_MAINTENANCE], NOW))

    blocked_text, pending_text = text.split("PENDING")
    assert "3 of 5 pods left, created 10m ago" in blocked_text  # the maintenance may have begun long after its creation
    assert "Last error" not in blocked_text  # the error only repeats the blocked pods
    assert "shop/web-1" in blocked_text.split("BLOCKED")[1]
    assert pending_text.split() == ["shop/web-2", "shop/db"]


def test_names_and_commands_are_not_wrapped_on_narrow_terminal() -> None:
    """Check that names and commands are not wrapped on a narrow terminal, as they would be in a table."""
    pod_key, reason = "shop/web-6c9bff56b7-fsp2j-of-a-stateful-set", "MultipleBudgets"
    blocked_pods = [{**BLOCKED_POD, "name": pod_key.partition("/")[2], "since": TEN_MINUTES_AGO, "message": "needs 2"}]
    running = build_maintenance(
        phase="Running", evictionPods=1, blockedPods=[*blocked_pods, {**blocked_pods[0], "reason": reason}]
    )

    narrow_lines = (
        render_text(render_details("node-1", "cordoned", [running], NOW), 80).split("BLOCKED")[1].splitlines()
    )
    wide_lines = render_text(render_details("node-1", "cordoned", [running], NOW)).split("BLOCKED")[1].splitlines()

    assert [line.strip() for line in narrow_lines[1:3]] == [
        pod_key,
        "DisruptionBudget, under web, 2/2 healthy/needed, for 10m",
    ]
    assert "kubectl -n shop edit pdb web" in [line.strip() for line in narrow_lines]
    assert narrow_lines.count(pod_key) == 2
    assert len(wide_lines) == 5
    for width in range(60, 200):
        text = render_text(render_details("node-1", "cordoned", [running], NOW), width)
        assert text.count(pod_key) == 2, width
        assert text.count(reason) == 1, width


def test_pods_blocked_by_same_cause_share_row() -> None:
    """Check that fifteen pods behind one budget are one row with their number, and that both remedies are named."""
    blocked_pods = [{**BLOCKED_POD, "name": f"web-{number}", "message": "needs 2"} for number in range(15)]
    running = build_maintenance(phase="Running", evictionPods=15, blockedPods=blocked_pods, lastError="nodes: no")

    wide_text, narrow_text = (render_text(render_details("node-1", "cordoned", [running], NOW), n) for n in (200, 80))

    _, row, second_line = wide_text.split("BLOCKED")[1].splitlines()
    assert row.startswith("shop/web-0 and 14 more   DisruptionBudget   web")
    assert row.rstrip().endswith("1 more ready pod under this budget (repair unready pods, or scale up the workload)")
    assert second_line.strip() == "or a looser budget: kubectl -n shop edit pdb web"
    assert "Last error: nodes: no" in wide_text
    narrow_lines = [line.strip() for line in narrow_text.split("BLOCKED")[1].splitlines()]
    assert narrow_lines[5:7] == ["shop/web-4", "and 10 more"]
    assert "kubectl -n shop edit pdb web" in narrow_lines


def test_wide_details_name_each_blocked_pod() -> None:
    blocked_pods = [{**BLOCKED_POD, "name": f"web-{number}"} for number in range(15)]
    running = build_maintenance(phase="Running", evictionPods=15, blockedPods=blocked_pods)

    lines = render_text(render_details("node-1", "cordoned", [running], NOW, is_wide=True), 200).splitlines()

    assert [line for line in lines if line.startswith("shop/web-")] == [f"shop/web-{number}" for number in range(15)]


@pytest.mark.parametrize("percent", [0, 1, 50, 99, 100])
def test_progress_bar_has_constant_length(percent: int) -> None:
    assert len(render_bar(percent).plain) == len(render_bar(0).plain)


def test_waiting_and_ending_maintenances_have_phase_labels() -> None:
    ending_maintenance = build_maintenance(phase="Running")
    ending_maintenance["metadata"]["deletionTimestamp"] = TEN_MINUTES_AGO

    assert [get_phase_label(build_maintenance()), get_phase_label(ending_maintenance)] == ["Waiting", "Ending"]
    assert format_line(build_maintenance()) == "node-1 Waiting 0% 0 pending, 0 blocked"
