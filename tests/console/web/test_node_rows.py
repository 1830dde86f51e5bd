"""Unit tests of the row of a node in the list: its state and the actions that it offers."""

from __future__ import annotations

from typing import Any

import pytest

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
    build_row,
    build_rows,
    diff_rows,
    select_draining,
)
from tests.kube.samples import make_maintenance

READY_NODE = NodeFacts("node-1", is_ready=True, is_cordoned=False, version="", taints=())
BLOCKED_POD = {"namespace": "default", "name": "web-1", "reason": "DisruptionBudget", "message": "budget web needs 2"}
COUNTS = {"evictionPods": 4, "drainProgress": 50, "pendingPods": ["web-1", "web-2"]}


def build_maintenance(status: dict[str, Any] | None, **metadata: str) -> dict[str, Any]:
    item = make_maintenance(status)
    return {**item, "metadata": {**item["metadata"], **metadata}}


@pytest.mark.parametrize(
    ("status", "state", "offers"),
    [
        (None, "Starting", STOP),
        ({"phase": "Running", **COUNTS}, "Draining", STOP),
        ({"phase": "Running", **COUNTS, "blockedPods": [BLOCKED_POD]}, "Blocked", STOP),
        ({"phase": "Succeeded", **COUNTS}, "Drained", STOP),
        ({"phase": "Failed", "lastError": "no node"}, "Failed", STOP),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_state_follows_the_phase(status: dict[str, Any] | None, state: str, offers: str) -> None:
    """OSV-8: The state follows the phase, and every maintenance that has not ended can be stopped."""
    row = build_row("node-1", READY_NODE, [build_maintenance(status)])

    assert (row.state, row.offered_action) == (state, offers)


def test_blocked_drain_has_one_sentence() -> None:
    """OSV-9: The row names the first blocked pod with its reason, and the number of other blocked pods."""
    row = build_row(
        "node-1",
        READY_NODE,
        [build_maintenance({"phase": "Running", **COUNTS, "blockedPods": [BLOCKED_POD, BLOCKED_POD]})],
    )

    assert row.why == "default/web-1: budget web needs 2 (and 1 more)"
    assert (row.percent, row.remaining_pods, row.total_pods, row.blocked_pods) == (50, 2, 4, 2)
    assert row.reason == "test"


@pytest.mark.parametrize(
    ("node", "state", "note"),
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
def test_node_without_maintenance_offers_start_only(node: NodeFacts, state: str, note: str) -> None:
    """OSV-8: A node without maintenance offers only to start one, with a note if it is cordoned."""
    row = build_row("node-1", node, [])

    assert (row.state, row.offered_action) == (state, START)
    assert row.note.startswith(note)


def test_ending_maintenance_offers_no_action() -> None:
    row = build_row(
        "node-1", READY_NODE, [build_maintenance({"phase": "Succeeded"}, deletionTimestamp="2026-01-01T00:00:00Z")]
    )

    assert (row.state, row.offered_action) == ("Restoring", "")
    assert "the functions restore the node" in row.note


def test_released_maintenance_does_not_count() -> None:
    """OSV-8: A released maintenance that another finalizer keeps does not count, and the node may start a new one."""
    ending_maintenance = build_maintenance({"phase": "Succeeded"}, deletionTimestamp="2026-01-01T00:00:00Z")
    released = {
        **ending_maintenance,
        "metadata": {**ending_maintenance["metadata"], "finalizers": ["backup.example/keep"]},
    }

    assert (
        build_row("node-1", READY_NODE, [released]).state,
        build_row("node-1", READY_NODE, [released]).offered_action,
    ) == (
        "In service",
        START,
    )
    assert (
        build_row("node-1", READY_NODE, [released, build_maintenance({"phase": "Running", **COUNTS})]).state
        == "Draining"
    )
    assert select_draining([released, ending_maintenance]) == ending_maintenance
    assert build_rows({}, [released]) == []


def test_draining_maintenance_is_shown() -> None:
    """X-7: Of several maintenances of a node, the row shows the draining one and counts all."""
    failed = build_maintenance({"phase": "Failed", "lastError": "another one"}, uid="second")

    assert (
        build_row("node-1", READY_NODE, [failed, build_maintenance({"phase": "Running", **COUNTS})]).state
        == "Draining (1 of 2)"
    )


def test_maintenance_of_missing_node_has_a_row() -> None:
    (row,) = build_rows({}, [build_maintenance({"phase": "Failed", "lastError": "no node"})])

    assert (row.name, row.readiness, row.why) == ("node-1", "gone", "no node")


def test_deleted_node_offers_no_action() -> None:
    """Check that a deleted node, whose page may still be open, offers no action."""
    row = build_row("node-1", None, [])

    assert (row.readiness, row.state, row.offered_action) == ("gone", "Gone", "")


def test_changes_list_new_changed_and_removed_rows() -> None:
    """Check that the differences between two lists are their removed, changed and new rows."""
    first, second, third = (Row(name, "Ready", "In service", "ok", START) for name in "abc")
    other = Row("b", "Ready", "Draining", "busy", STOP)

    assert list(diff_rows([first, second], [first, second])) == []
    assert list(diff_rows([first, second], [other, third])) == [
        RowChange(ROW_GONE, first),
        RowChange(ROW_CHANGED, other, action_differs=True),
        RowChange(ROW_NEW, third, after=other.html_id),
    ]


def test_filter_matches_text_and_state() -> None:
    draining = Row("Node-1", "Ready", "Draining", "busy", STOP, percent=0, blocked_pods=1)

    assert RowFilter("node", "blocked")(draining)
    assert not RowFilter("other")(draining)
    assert not RowFilter("", "service")(draining)
