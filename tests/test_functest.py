"""Tests for the messages of `make cluster-functest`; the tests in `tests/localcluster` run it on a cluster."""

from __future__ import annotations

import pytest

from kube.paths import Object
from tests import functest

BLOCKED_POD = {
    "namespace": "default",
    "name": "web-0",
    "reason": "DisruptionBudget",
    "message": "budget web has 1 of 1",
}
CORDONED_CONDITIONS = [{"type": "Cordoned", "status": "True"}]


def build_maintenance(**status: object) -> Object:
    """Build a NodeMaintenance with this status."""
    return {"metadata": {"name": "functest-1"}, "spec": {"nodeName": "node-1"}, "status": status}


@pytest.mark.parametrize(
    ("maintenance", "message"),
    [
        (build_maintenance(), f"new after 600 s: {functest.NOT_BEGUN_HINT}"),
        (build_maintenance(phase="Running"), "Running after 600 s"),
        (build_maintenance(phase="Running", lastError="timed out"), "Running after 600 s: timed out"),
        (
            build_maintenance(phase="Running", blockedPods=[BLOCKED_POD]),
            "Running after 600 s: default/web-0: budget web has 1 of 1",
        ),
    ],
)
def test_timeout_message_of_functest_contains_reason(maintenance: Object, message: str) -> None:
    assert functest.format_timeout(maintenance) == message


@pytest.mark.parametrize(
    ("maintenance", "message"),
    [
        (build_maintenance(), "node node-1 was never cordoned"),
        (build_maintenance(phase="Failed"), "node node-1 was never cordoned"),
        (build_maintenance(phase="Running", conditions=CORDONED_CONDITIONS), "node node-1 is schedulable again"),
        (None, "node node-1 is schedulable again"),
    ],
)
def test_result_line_of_functest_reports_whether_node_is_cordoned(maintenance: Object | None, message: str) -> None:
    assert functest.format_result("node-1", maintenance) == message
