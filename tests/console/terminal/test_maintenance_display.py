"""Tests for the display of maintenances in a terminal."""

from __future__ import annotations

from datetime import datetime, timezone
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from console.operations.budget_hints import BudgetHints
from console.operations.descriptions import get_phase_label
from console.operations.next_steps import suggest_node_steps
from console.terminal.maintenance_display import (
    format_line,
    render_awaited_maintenances,
    render_details,
    render_next_steps,
    render_overview,
)
from kube.maintenance.blocked_groups import Remedy
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
    assert row.split() == ["node-1", "Running", "━" * 4 + "─" * 6, "40%", "3", "1", "10m", "new", "[disk]"]


def test_details_name_users_who_started_and_stopped_maintenance() -> None:
    maintenance = build_maintenance(phase="Running")
    maintenance["metadata"] |= {
        "annotations": {REQUESTER_ANNOTATION: "mary", ENDER_ANNOTATION: "joe"},
        "deletionTimestamp": TEN_MINUTES_AGO,
    }

    lines = render_text(render_details("node-1", "cordoned", [maintenance], NOW)).splitlines()

    assert lines[-1].strip() == "Requested by mary; ended by joe"


def test_details_show_passed_deadline_and_current_escalation_step() -> None:
    """Check that the details show the passed deadline and, while the spec contains it, the current escalation step."""
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


def test_details_show_note_about_repaired_cordon_with_its_command() -> None:
    note = Remedy("Cordoned again 5m ago", "kubectl maintenance stop node-1")

    text = render_text(render_details("node-1", "cordoned", [RUNNING_MAINTENANCE], NOW, repair_notes={"1": note}))

    assert "\nCordoned again 5m ago:\n  kubectl maintenance stop node-1\n" in text


def test_long_reason_is_truncated_with_number_of_omitted_characters() -> None:
    """Check that a reason of 5,000 characters takes one line of the table, and a few lines of the details."""
    maintenance = build_maintenance(phase="Running")
    maintenance["spec"]["reason"] = "word " * 1000

    table = render_text(render_overview([maintenance], NOW))
    details = render_text(render_details("node-1", "cordoned", [maintenance], NOW), 80)

    assert len(table.splitlines()) == 2
    assert table.rstrip().endswith("… (4940 more characters)")
    assert len(details.splitlines()) <= 10
    assert "(4700 more characters)" in " ".join(details.split())


def test_error_of_failed_maintenance_is_shown_below_table_and_in_progress_line() -> None:
    failed = build_maintenance(phase="Failed", lastError='nodes "node-1" not found')

    *_, last_line = render_text(render_overview([RUNNING_MAINTENANCE, failed], NOW)).splitlines()

    assert last_line == 'nodemaintenance.nodemaintenance.medik8s.io/disk failed: nodes "node-1" not found'
    assert format_line(failed) == 'node-1 Failed 0% 0 pending, 0 blocked: nodes "node-1" not found'
    assert "web-1: needs 2" not in render_text(render_overview([RUNNING_MAINTENANCE], NOW))


def test_reason_of_waiting_maintenance_is_shown_below_table_and_in_progress_line() -> None:
    """NMO-27a: a maintenance without a phase is shown with the reason, for example a Lease that another tool holds."""
    waiting_maintenance = build_maintenance(lastError="the lease is held by another-tool")

    *_, last_line = render_text(render_overview([waiting_maintenance, build_maintenance()], NOW)).splitlines()

    assert last_line == "nodemaintenance.nodemaintenance.medik8s.io/disk waits: the lease is held by another-tool"
    assert (
        format_line(waiting_maintenance) == "node-1 Waiting 0% 0 pending, 0 blocked: the lease is held by another-tool"
    )


def test_drain_whose_latest_step_failed_is_shown_as_failing_with_error() -> None:
    """X-6: a drain whose latest step failed is shown as failing, but not a drain with blocked pods or a Lease error."""
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
    # The maintenance may begin long after its creation.
    assert "3 of 5 pods remaining, created 10m ago" in blocked_text
    assert "Last error" not in blocked_text  # The error only repeats the message about the blocked pods.
    assert "shop/web-1" in blocked_text.split("BLOCKED")[1]
    assert pending_text.split() == ["shop/web-2", "shop/db"]


def build_blocked_maintenance(count: int, **fields: Any) -> dict[str, Any]:
    """Build a running maintenance whose pods `web-0` to `web-N` are blocked by one PodDisruptionBudget."""
    entry = {**BLOCKED_POD, "since": TEN_MINUTES_AGO, "message": "budget web needs 2 healthy pods and has 2"}
    blocked_pods = [{**entry, "name": f"web-{number}"} for number in range(count)]
    return build_maintenance(phase="Running", evictionPods=count, blockedPods=blocked_pods, **fields)


@pytest.mark.parametrize("width", [80, 240])
def test_names_and_commands_have_their_own_line(width: int) -> None:
    """Check that each pod name and each command has its own line, both on a terminal of 80 columns and in a pipe."""
    maintenance = build_blocked_maintenance(1)
    pod_name = "web-6c9bff56b7-fsp2j-of-a-stateful-set"
    maintenance["status"]["blockedPods"][0]["name"] = pod_name
    maintenance["status"]["blockedPods"].append(
        {**BLOCKED_POD, "name": pod_name, "reason": "MultipleBudgets", "message": "delete or narrow one budget"}
    )

    lines = render_text(render_details("node-1", "cordoned", [maintenance], NOW), width).split("BLOCKED\n")[1]

    assert [line.strip() for line in lines.splitlines() if "pod under this budget" not in line][:6] == [
        "1 pod for 10m, DisruptionBudget: budget web needs 2 healthy pods and has 2",
        f"shop/{pod_name}",
        *(["scale up the workload)"] if width == 80 else []),
        "or a looser budget:",
        "kubectl -n shop edit pdb web",
        "1 pod, MultipleBudgets: delete or narrow one budget",
        *([f"shop/{pod_name}"] if width > 80 else []),
    ]
    assert max(map(len, lines.splitlines())) <= max(80, min(width, 100))


def test_pods_blocked_by_same_cause_are_one_group() -> None:
    """Check that fifteen pods blocked by one PodDisruptionBudget are one group with a count and two remedies."""
    text = render_text(
        render_details("node-1", "cordoned", [build_blocked_maintenance(15, lastError="nodes: no")], NOW)
    )

    assert "  15 pods for 10m, DisruptionBudget: budget web needs 2 healthy pods and has 2\n    shop/web-0\n" in text
    assert "    shop/web-4\n    and 10 more\n" in text
    remedy = "1 more ready pod under this budget (repair unready pods, or scale up the workload)"
    assert f"    To unblock: {remedy}\n    or a looser budget:\n      kubectl -n shop edit pdb web\n" in text
    assert "Last error: nodes: no" in text


def test_command_that_scales_up_workload_is_part_of_remedy() -> None:
    command = "kubectl scale deployment/web -n shop --replicas=3"
    hints = BudgetHints({}, {"shop/web": command})

    text = render_text(render_details("node-1", "cordoned", [build_blocked_maintenance(2)], NOW, hints))

    assert f"scale up the workload):\n      {command}\n    or a looser budget:\n" in text


def test_time_of_next_eviction_attempt_is_shown() -> None:
    refused = {"namespace": "shop", "name": "web-1", "reason": "Error", "message": "no"}
    maintenance = build_maintenance(phase="Running", blockedPods=[{**refused, "retryAfter": "2026-01-01T12:01:05Z"}])

    assert "next attempt at 12:01:05 UTC" in render_text(render_details("node-1", "cordoned", [maintenance], NOW))


def test_wide_details_name_each_blocked_pod() -> None:
    maintenance = build_blocked_maintenance(15)

    lines = render_text(render_details("node-1", "cordoned", [maintenance], NOW, is_wide=True), 200).splitlines()

    assert [line.strip() for line in lines if line.startswith("    shop/web-")] == [
        f"shop/web-{number}" for number in range(15)
    ]


def test_table_row_fits_80_columns() -> None:
    """Check that a row is one line of at most 80 columns, even with a long node name and a long, truncated reason."""
    maintenance = build_blocked_maintenance(1)
    maintenance["spec"] = {"nodeName": "worker-12.example", "reason": "a new power supply for the whole rack " * 2}
    header, row = render_text(render_overview([maintenance], NOW), 80).splitlines()
    maintenance["spec"]["nodeName"] = "ip-10-0-3-17.eu-central-1.compute.internal"
    long_rows = render_text(render_overview([maintenance], NOW), 80).splitlines()[1:]

    assert row.startswith("worker-12.example   Running   ")
    assert "…" in row
    assert max(map(len, [header, row, *long_rows])) <= 80
    assert "".join(line.split()[0] for line in long_rows) == "ip-10-0-3-17.eu-central-1.compute.internal"


def test_wide_table_breaks_no_word_at_140_columns() -> None:
    maintenance = build_maintenance(phase="Running")
    maintenance["metadata"] |= {
        "name": "worker-12.example",
        "annotations": {REQUESTER_ANNOTATION: "system:serviceaccount:ops:rack"},
    }
    maintenance["spec"] = {"nodeName": "worker-12.example", "reason": "a new power supply for the whole rack"}

    header, row = render_text(render_overview([maintenance], NOW, is_wide=True), 140).splitlines()

    assert header.split()[-3:] == ["MAINTENANCE", "REQUESTED", "BY"]
    assert row.split()[-2:] == ["worker-12.example", "system:serviceaccount:ops:rack"]


def test_next_steps_have_command_on_its_own_line() -> None:
    text = render_text(render_next_steps(suggest_node_steps("node-1", [build_blocked_maintenance(1)]))[-1])

    assert text == "    kubectl maintenance status node-1 --watch\n"
    assert render_next_steps([]) == []
