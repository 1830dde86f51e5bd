"""Unit tests of the row of a node in the list: its state and the actions that it offers."""

from __future__ import annotations

from typing import Any

import pytest

from console.web.node_rows import CHANGED, GONE, NEW, START, STOP, NodeFacts, Row, Step, Wanted, leading, row, rows, steps
from tests.kube.samples import maintenance

READY = NodeFacts("node-1", ready=True, cordoned=False, version="", taints=())
BLOCKED = {"namespace": "default", "name": "web-1", "reason": "DisruptionBudget", "message": "budget web needs 2"}
COUNTED = {"evictionPods": 4, "drainProgress": 50, "pendingPods": ["web-1", "web-2"]}


def in_maintenance(status: dict[str, Any] | None, **metadata: str) -> dict[str, Any]:
    item = maintenance(status)
    return {**item, "metadata": {**item["metadata"], **metadata}}


@pytest.mark.parametrize(
    ("status", "state", "offers"),
    [
        (None, "Starting", STOP),
        ({"phase": "Running", **COUNTED}, "Draining", STOP),
        ({"phase": "Running", **COUNTED, "blockedPods": [BLOCKED]}, "Blocked", STOP),
        ({"phase": "Succeeded", **COUNTED}, "Drained", STOP),
        ({"phase": "Failed", "lastError": "no node"}, "Failed", STOP),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_state_is_the_phase_in_a_word(status: dict[str, Any] | None, state: str, offers: str) -> None:
    """OSV-8: The state follows the phase, and every maintenance that has not ended can be stopped."""
    shown = row("node-1", READY, [in_maintenance(status)])

    assert (shown.state, shown.offers) == (state, offers)


def test_what_holds_a_drain_up_is_said_in_one_sentence() -> None:
    """OSV-9: The row names the first blocked pod with its reason, and the number of other blocked pods."""
    shown = row("node-1", READY, [in_maintenance({"phase": "Running", **COUNTED, "blockedPods": [BLOCKED, BLOCKED]})])

    assert shown.why == "default/web-1: budget web needs 2 (and 1 more)"
    assert (shown.percent, shown.left, shown.total, shown.blocked) == (50, 2, 4, 2)
    assert shown.reason == "test"


@pytest.mark.parametrize(
    ("node", "state", "note"),
    [
        (READY, "In service", ""),
        (NodeFacts("node-1", True, True, "", ()), "Cordoned", "Cordoned by hand: there is no maintenance to stop."),
        (NodeFacts("node-1", True, True, "", (), labelled=True), "Cordoned", "Left so by a maintenance that is gone"),
    ],
)
def test_a_node_without_maintenance_offers_nothing_to_stop(node: NodeFacts, state: str, note: str) -> None:
    """OSV-8: A node without maintenance offers only to start one, with a note if it is cordoned."""
    shown = row("node-1", node, [])

    assert (shown.state, shown.offers) == (state, START)
    assert shown.note.startswith(note)


def test_one_that_is_ending_offers_nothing() -> None:
    shown = row("node-1", READY, [in_maintenance({"phase": "Succeeded"}, deletionTimestamp="2026-01-01T00:00:00Z")])

    assert (shown.state, shown.offers) == ("Coming back", "")
    assert "comes back by itself" in shown.note


def test_one_that_is_over_is_nobodys_maintenance() -> None:
    """OSV-8: A released maintenance that another finalizer keeps does not count, and the node may start a new one."""
    ending = in_maintenance({"phase": "Succeeded"}, deletionTimestamp="2026-01-01T00:00:00Z")
    over = {**ending, "metadata": {**ending["metadata"], "finalizers": ["backup.example/keep"]}}

    assert (row("node-1", READY, [over]).state, row("node-1", READY, [over]).offers) == ("In service", START)
    assert row("node-1", READY, [over, in_maintenance({"phase": "Running", **COUNTED})]).state == "Draining"
    assert leading([over, ending]) == ending
    assert rows({}, [over]) == []


def test_of_several_maintenances_the_one_that_drains_is_shown() -> None:
    """X-7: Of several maintenances of a node, the row shows the draining one and counts all."""
    failed = in_maintenance({"phase": "Failed", "lastError": "another one"}, uid="second")

    assert row("node-1", READY, [failed, in_maintenance({"phase": "Running", **COUNTED})]).state == "Draining (1 of 2)"


def test_a_maintenance_of_a_node_that_is_not_there_has_a_row() -> None:
    (shown,) = rows({}, [in_maintenance({"phase": "Failed", "lastError": "no node"})])

    assert (shown.name, shown.ready, shown.why) == ("node-1", "gone", "no node")


def test_a_node_that_is_gone_offers_nothing() -> None:
    """Check that a deleted node, whose page may still be open, offers no action."""
    shown = row("node-1", None, [])

    assert (shown.ready, shown.state, shown.offers) == ("gone", "Gone", "")


def test_steps_say_what_is_new_different_and_gone() -> None:
    """Check that the differences between two lists are their removed, changed and new rows."""
    one, two, three = (Row(name, "Ready", "In service", "ok", START) for name in "abc")
    other = Row("b", "Ready", "Draining", "busy", STOP)

    assert list(steps([one, two], [one, two])) == []
    assert list(steps([one, two], [other, three])) == [
        Step(GONE, one),
        Step(CHANGED, other, offers_differ=True),
        Step(NEW, three, after=other.key),
    ]


def test_wanted_rows_have_the_text_and_the_state() -> None:
    draining = Row("Node-1", "Ready", "Draining", "busy", STOP, percent=0, blocked=1)

    assert Wanted("node", "blocked")(draining)
    assert not Wanted("other")(draining)
    assert not Wanted("", "service")(draining)
