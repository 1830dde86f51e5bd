"""Tests for the summary of a preview that `start` and the console's dialog show before the confirmation."""

from __future__ import annotations

from console.operations.preview_summary import list_block_causes, summarize_preview
from console.operations.recorded_drains import RecordedDrain
from kube.virtualization.drain_forecast import BLOCKS, MOVES
from tests.console.operations.test_maintenance_preview import (
    make_bound_pod,
    make_db_pods,
    make_vmi_report,
    preview_pods,
)
from tests.kube.samples import make_budget


def test_summary_of_drain_without_problems_has_counts_and_duration() -> None:
    preview = preview_pods(
        [make_bound_pod("web-1")], drains=[RecordedDrain("node-9", 90), RecordedDrain("node-9", 110)]
    )

    assert summarize_preview(preview) == [
        "1 pod leaves now",
        "about 1m40s by 2 recorded drains of other nodes (median)",
        "at most 30s by grace periods, for the pods that are not blocked",
    ]


def test_summary_lists_causes_of_blockage_and_lost_pods() -> None:
    """Check that each cause has one line, and that lost pods and missing capacity are worded as in the webhook."""
    pods = [*make_db_pods(4, "node-1"), make_bound_pod("bare", owner="")]

    preview = preview_pods(pods, [make_budget("db", healthy=4, needed=4)], other_cpu="1")

    cause = "4 pods will block the drain: budget db needs 4 healthy pods and has 4"
    assert [line.startswith(cause) for line in list_block_causes(preview)] == [True]
    counts, blocked, bare, capacity, _ = summarize_preview(preview)
    assert counts == "1 pod leaves now, 4 pods are blocked"
    assert blocked.endswith(": ns/db-node-1-0 on node-1, ns/db-node-1-1 on node-1, ns/db-node-1-2 on node-1 and 1 more")
    assert bare == "no controller will recreate 1 pod after the eviction: ns/bare on node-1"
    assert capacity.startswith("no other node has capacity for 3 pods: ns/db-node-1-")


def test_summary_of_empty_node_and_of_virtual_machines() -> None:
    reports = [make_vmi_report("live", MOVES), make_vmi_report("stuck", BLOCKS)]

    assert summarize_preview(preview_pods([])) == ["no pods to evict"]
    assert summarize_preview(preview_pods([], reports=reports)) == [
        "1 virtual machine will move to another node without interruption: ns/live",
        "1 virtual machine will block the drain: ns/stuck (no disk)",
    ]
