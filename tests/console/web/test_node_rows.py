"""Tests for a node's row in the list: its state, and the actions that it offers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Response
from jinja2 import Environment, FileSystemLoader

from console.web import node_rows
from console.web.node_rows import (
    ROW_CHANGED,
    ROW_GONE,
    ROW_NEW,
    START,
    STOP,
    NodeFacts,
    Row,
    RowChange,
    RowFilter,
    RowOrder,
    build_row,
    build_rows,
    diff_rows,
    select_draining_maintenance,
)
from console.web.node_views import CHUNK_CHARACTERS, join_chunks
from tests.kube.samples import make_maintenance

READY_NODE = NodeFacts("node-1", is_ready=True, is_cordoned=False, version="", taints=())
BLOCKED_POD = {"namespace": "default", "name": "web-1", "reason": "DisruptionBudget", "message": "budget web needs 2"}
COUNTS = {"evictionPods": 4, "drainProgress": 50, "pendingPods": ["web-1", "web-2"]}


def build_maintenance(status: dict[str, Any] | None, **metadata: str) -> dict[str, Any]:
    maintenance = make_maintenance(status)
    return {**maintenance, "metadata": {**maintenance["metadata"], **metadata}}


@pytest.mark.parametrize(
    ("status", "expected_state", "expected_action"),
    [
        (None, "Starting", STOP),
        ({"phase": "Running", **COUNTS}, "Draining", STOP),
        ({"phase": "Running", **COUNTS, "blockedPods": [BLOCKED_POD]}, "Blocked", STOP),
        ({"phase": "Succeeded", **COUNTS}, "Drained", STOP),
        ({"phase": "Running", **COUNTS, "lastError": "nodes is forbidden"}, "Step failed", STOP),
        ({"phase": "Running", "conditions": [{"type": "Cordoned", "status": "False"}]}, "Cordoning", STOP),
        ({"phase": "Failed", "lastError": "no node"}, "Failed", STOP),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_state_follows_phase_of_maintenance(
    status: dict[str, Any] | None, expected_state: str, expected_action: str
) -> None:
    """OSV-8: the row's state follows the maintenance's phase, and every unfinished maintenance can be stopped."""
    row = build_row("node-1", READY_NODE, [build_maintenance(status)])

    assert (row.state, row.offered_action) == (expected_state, expected_action)


def test_row_of_failed_step_is_marked_and_names_error_before_blocked_pods() -> None:
    """OSV-8: a drain whose latest step failed is not shown as blocked, because its node may be schedulable."""
    status = {"phase": "Running", **COUNTS, "blockedPods": [BLOCKED_POD], "lastError": "nodes is forbidden"}

    row = build_row("node-1", READY_NODE, [build_maintenance(status)])

    assert (row.state, row.tone, row.blocker) == ("Step failed", "bad", "nodes is forbidden")


def test_row_of_blocked_drain_names_cause_and_first_blocked_pod() -> None:
    """OSV-9: the row shows the cause, the first blocked pod, and the number of other blocked pods."""
    row = build_row(
        "node-1",
        READY_NODE,
        [build_maintenance({"phase": "Running", **COUNTS, "blockedPods": [BLOCKED_POD, BLOCKED_POD]})],
    )

    assert row.blocker == "budget web needs 2: default/web-1 and 1 more"
    assert (row.percent, row.remaining_pods, row.total_pods, row.blocked_pods) == (50, 2, 4, 2)
    assert row.reason == "test"


@pytest.mark.parametrize(
    ("node", "expected_state", "expected_note"),
    [
        (READY_NODE, "In service", ""),
        (NodeFacts("node-1", True, True, "", ()), "Cordoned", "Cordoned without a maintenance: "),
        (
            NodeFacts("node-1", True, True, "", (), is_labelled=True),
            "Cordoned",
            "Cordoned by a maintenance that no longer exists",
        ),
    ],
)
def test_node_without_maintenance_offers_only_start(node: NodeFacts, expected_state: str, expected_note: str) -> None:
    """OSV-8: the row of a node without a maintenance offers only Start, and notes whether the node is cordoned."""
    row = build_row("node-1", node, [])

    assert (row.state, row.offered_action) == (expected_state, START)
    assert row.note.startswith(expected_note)


def test_row_of_ending_maintenance_offers_no_action() -> None:
    row = build_row(
        "node-1", READY_NODE, [build_maintenance({"phase": "Succeeded"}, deletionTimestamp="2026-01-01T00:00:00Z")]
    )

    assert (row.state, row.offered_action) == ("Restoring", "")
    assert "the functions restore the node" in row.note


def test_released_maintenance_is_ignored() -> None:
    """OSV-8: a released maintenance that still has a finalizer is ignored, so the row offers a new maintenance."""
    ending_maintenance = build_maintenance({"phase": "Succeeded"}, deletionTimestamp="2026-01-01T00:00:00Z")
    released_maintenance = {
        **ending_maintenance,
        "metadata": {**ending_maintenance["metadata"], "finalizers": ["backup.example/keep"]},
    }

    assert (
        build_row("node-1", READY_NODE, [released_maintenance]).state,
        build_row("node-1", READY_NODE, [released_maintenance]).offered_action,
    ) == (
        "In service",
        START,
    )
    assert (
        build_row("node-1", READY_NODE, [released_maintenance, build_maintenance({"phase": "Running", **COUNTS})]).state
        == "Draining"
    )
    assert select_draining_maintenance([released_maintenance, ending_maintenance]) == ending_maintenance
    assert build_rows({}, [released_maintenance]) == []


def test_row_of_node_with_several_maintenances_shows_draining_maintenance() -> None:
    """X-7: the row of a node with several maintenances shows the draining one, and the number of maintenances."""
    failed_maintenance = build_maintenance({"phase": "Failed", "lastError": "another one"}, uid="second")

    assert (
        build_row("node-1", READY_NODE, [failed_maintenance, build_maintenance({"phase": "Running", **COUNTS})]).state
        == "Draining (1 of 2)"
    )


def test_maintenance_of_missing_node_has_row() -> None:
    (row,) = build_rows({}, [build_maintenance({"phase": "Failed", "lastError": "no node"})])

    assert (row.name, row.readiness, row.blocker) == ("node-1", "gone", "no node")


def test_row_of_deleted_node_offers_no_action() -> None:
    """Check that the row of a deleted node, whose page may still be open, offers no action."""
    row = build_row("node-1", None, [])

    assert (row.readiness, row.state, row.offered_action) == ("gone", "Gone", "")


def test_diff_lists_removed_changed_and_new_rows() -> None:
    """Check that the difference between two lists of rows consists of the removed, changed and new rows."""
    first_row, second_row, third_row = (Row(name, "Ready", "In service", "ok", START) for name in "abc")
    changed_row = Row("b", "Ready", "Draining", "busy", STOP)

    assert list(diff_rows([first_row, second_row], [first_row, second_row])) == []
    assert list(diff_rows([first_row, second_row], [changed_row, third_row])) == [
        RowChange(ROW_GONE, first_row),
        RowChange(ROW_CHANGED, changed_row, action_differs=True),
        RowChange(ROW_NEW, third_row, after=changed_row.html_id),
    ]


def test_row_filter_matches_text_and_state() -> None:
    draining_row = Row("Node-1", "Ready", "Draining", "busy", STOP, percent=0, blocked_pods=1)

    assert RowFilter("node", "maintenance")(draining_row)
    assert not RowFilter("node", "blocked")(draining_row)
    assert not RowFilter("other")(draining_row)
    assert not RowFilter("", "cordoned")(draining_row)


@pytest.mark.parametrize(
    ("node", "status", "expected_filters", "expected_urgency"),
    [
        (READY_NODE, {"phase": "Running", **COUNTS, "blockedPods": [BLOCKED_POD]}, "maintenance blocked", 0),
        (READY_NODE, {"phase": "Running", **COUNTS, "lastError": "nodes is forbidden"}, "maintenance blocked", 0),
        (READY_NODE, {"phase": "Failed", "lastError": "no node"}, "maintenance blocked", 0),
        (READY_NODE, {"phase": "Running", **COUNTS}, "maintenance", 1),
        (READY_NODE, {"phase": "Succeeded", **COUNTS}, "maintenance", 2),
        (replace(READY_NODE, is_cordoned=True), None, "cordoned", 3),
        (replace(READY_NODE, is_ready=False), None, "", 3),
        (READY_NODE, None, "", 4),
    ],
    ids=["blocked", "step failed", "failed", "draining", "drained", "cordoned", "not ready", "in service"],
)
def test_filters_and_urgency_follow_state(
    node: NodeFacts, status: dict[str, Any] | None, expected_filters: str, expected_urgency: int
) -> None:
    """Check which filters select a row, and that rows that need an administrator's attention come first."""
    row = build_row("node-1", node, [build_maintenance(status)] if status else [])

    assert (row.filters, row.urgency) == (expected_filters, expected_urgency)


def test_rows_are_sorted_by_column_with_empty_values_last() -> None:
    """Check that versions are sorted numerically, equal rows by name, and that rows without a value come last."""
    rows = [
        Row(name, "Ready", "In service", "ok", START, version=version)
        for name, version in (("a", "v1.9.0"), ("b", ""), ("c", "v1.10.0"), ("d", "v1.9.0"))
    ]

    assert [row.name for row in RowOrder("version").sort(rows)] == ["a", "d", "c", "b"]
    assert [row.name for row in RowOrder("version", is_descending=True).sort(rows)] == ["c", "a", "d", "b"]
    assert [row.name for row in RowOrder("name", is_descending=True).sort(rows)] == ["d", "c", "b", "a"]


def test_row_has_roles_and_version_of_node() -> None:
    """Check that a row shows the node's version, and its roles as `kubectl get nodes` prints them."""
    labels = {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": "", "zone": "a"}
    node = {
        "metadata": {"name": "node-1", "labels": labels},
        "spec": {},
        "status": {"nodeInfo": {"kubeletVersion": "v1.36.2"}},
    }

    row = build_row("node-1", NodeFacts.from_node(node), [])

    assert (row.roles, row.version) == ("control-plane, worker", "v1.36.2")


def test_row_has_time_and_requester_of_maintenance() -> None:
    """Check that a row shows the maintenance's creation time, and the user who requested the maintenance."""
    maintenance = build_maintenance({"phase": "Running"}, creationTimestamp="2026-01-01T00:00:00Z")
    maintenance["metadata"]["annotations"] = {"nodemaintenance.dev/requested-by": "eve"}

    row = build_row("node-1", READY_NODE, [maintenance])

    assert (row.since, row.requester) == ("2026-01-01T00:00:00Z", "eve")


def test_template_ends_when_browser_disconnects() -> None:
    """Check that the template's generator is closed together with the response, and does not keep its context alive."""
    has_ended = []

    def render_parts() -> Iterator[str]:
        try:
            yield "a" * CHUNK_CHARACTERS
            yield "b"
        finally:
            has_ended.append(True)

    response = Response(join_chunks(render_parts()))
    assert next(iter(response.response)) == "a" * CHUNK_CHARACTERS
    assert not has_ended
    response.close()

    assert has_ended


def test_long_reason_is_cut_in_list_and_whole_in_title() -> None:
    """Check that a reason of 5,000 characters is truncated in the list, and complete in the element's title."""
    maintenance = build_maintenance({"phase": "Running"})
    maintenance["spec"]["reason"] = "word " * 1000
    loader = FileSystemLoader(Path(node_rows.__file__).parent / "templates")
    template = Environment(loader=loader, autoescape=True).from_string(
        "{% import 'parts.html' as parts with context %}{{ parts.cells(row) }}"
    )

    html = template.render(row=build_row("node-1", READY_NODE, [maintenance]))

    (title, text) = re.findall(r'<span class="reason clamp" title="([^"]*)">([^<]*)</span>', html)[0]
    assert title == "word " * 1000
    assert len(text) <= 120
    assert text.endswith("…")
