"""Labelling of a thousand nodes with the local delivery: one patch per node that needs it, and none afterwards."""

from __future__ import annotations

import pytest

from kube.cpu.node_patch import FEATURE, MARK
from localcluster.processes import await_ready
from tests.chain.cpu_labels.environment import HASWELL, HASWELLS, NAMES, PENRYNS, Stage, assert_each_once, patched, seconds
from tests.machine_speed import is_below
from tests.proofs import proves

pytestmark = pytest.mark.slow

LIMIT = 20.0
"""Maximum seconds for a round over all nodes."""
MOST_TICKS = 50
FUNCTION_LIMIT = "2.0"
"""Maximum seconds that a function may take for one event, as a bucket of its histogram."""


@pytest.fixture
def labelled(stage: Stage) -> Stage:
    """Return the environment with every node labelled and no event in flight.

    Two changes start two concurrent rounds. Ticks, each for a hundred nodes, patch the nodes at which the rounds
    conflict.
    """
    stage.wish({"cpuModels": [], "minCPUModel": ""})
    stage.offer()
    for _ in range(MOST_TICKS):
        if stage.count(MARK) == len(HASWELLS) + len(PENRYNS):
            break
        stage.tick()
    stage.reaches(MARK, len(HASWELLS) + len(PENRYNS))
    stage.reaches(HASWELL, len(HASWELLS))
    stage.reaches(f"{FEATURE}avx=true,!{FEATURE}sse4.2", len(PENRYNS))
    stage.settle()
    return stage


@proves("OSV-30", "OSV-31", "OSV-36", "OSV-38")
def test_a_model_becomes_obsolete_on_a_thousand_nodes(labelled: Stage) -> None:
    """Removing a newly obsolete model takes one patch of each affected node, and at most `LIMIT` seconds.

    No event takes a function longer than `FUNCTION_LIMIT`.
    """
    stage, audit = labelled, labelled.audit()

    stage.wish({"cpuModels": ["Haswell"]})
    stage.reaches(HASWELL, 0)
    stage.settle()

    assert_each_once(audit, HASWELLS)
    print(f"{len(HASWELLS)} of {len(NAMES)} nodes in {seconds(audit):.2f} s; events by seconds: {stage.longest()}")
    assert is_below(seconds(audit), LIMIT)
    assert stage.longest()[FUNCTION_LIMIT] == stage.longest()["+Inf"]


@proves("OSV-38")
def test_what_a_rack_offers_changes_for_its_nodes_alone(labelled: Stage) -> None:
    """Changing one rack in the shared ConfigMap causes patches of that rack's nodes only."""
    stage, audit = labelled, labelled.audit()

    stage.offer(features="avx sse4.2")
    stage.reaches(f"{FEATURE}avx=true,{FEATURE}sse4.2=true,!cpu-model.node.kubevirt.io/Haswell", len(PENRYNS))
    stage.settle()

    assert_each_once(audit, PENRYNS)


@proves("X-3")
def test_where_nothing_differs_ticks_write_nothing(labelled: Stage) -> None:
    """Ticks that together check every node write nothing if no label differs.

    A patch that was rejected because two rounds conflicted does not count as a write.
    """
    stage, audit = labelled, labelled.audit()

    for _ in range(len(NAMES) // 100 + 1):
        stage.tick()

    assert patched(audit) == {}


@proves("X-2", "X-3")
def test_a_kill_amid_a_round_costs_time_only(labelled: Stage) -> None:
    """Ticks finish a round that was interrupted by a crash, and patch no node twice.

    A node whose patch response was lost is excepted.
    """
    stage, audit = labelled, labelled.audit()

    stage.wish({"cpuModels": ["Haswell"]})
    wait_for_some(stage)
    stage.product.kill_functions()
    stage.product.start_functions()
    stage.reaches(HASWELL, 0, 90)
    stage.settle()

    assert_each_once(audit, HASWELLS)


def wait_for_some(stage: Stage) -> None:
    """Wait until a round is in progress and not finished."""
    await_ready("the first nodes", lambda: stage.count(HASWELL) < len(HASWELLS), stage.product.servers)
    assert stage.count(HASWELL) > 0
