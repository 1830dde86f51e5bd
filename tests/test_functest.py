"""The messages of `make cluster-functest`; the tests in `tests/localcluster` run it on a cluster."""

from __future__ import annotations

import pytest

from kube.paths import Object
from tests import functest

POD = {"namespace": "default", "name": "web-0", "reason": "DisruptionBudget", "message": "budget web has 1 of 1"}
CORDONED = [{"type": "Cordoned", "status": "True"}]


def maintenance(**status: object) -> Object:
    """Build a NodeMaintenance with this status."""
    return {"metadata": {"name": "functest-1"}, "spec": {"nodeName": "node-1"}, "status": status}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (maintenance(), f"new after 600 s: {functest.NOT_BEGUN}"),
        (maintenance(phase="Running"), "Running after 600 s"),
        (maintenance(phase="Running", lastError="no answer"), "Running after 600 s: no answer"),
        (maintenance(phase="Running", blockedPods=[POD]), "Running after 600 s: default/web-0: budget web has 1 of 1"),
    ],
)
def test_what_is_late_says_why(item: Object, words: str) -> None:
    assert functest.late(item) == words


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (maintenance(), "node node-1 was never out of service"),
        (maintenance(phase="Failed"), "node node-1 was never out of service"),
        (maintenance(phase="Running", conditions=CORDONED), "node node-1 is back in service"),
        (None, "node node-1 is back in service"),
    ],
)
def test_the_last_line_does_not_give_a_node_back_that_was_never_taken(found: Object | None, words: str) -> None:
    assert functest.farewell("node-1", found) == words
