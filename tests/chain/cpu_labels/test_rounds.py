"""A thousand nodes on the local delivery: one patch for each that needs one, none for others, and rest afterwards."""

from __future__ import annotations

import itertools

import pytest

from kube.cpu.node_patch import FEATURE, MARK
from localcluster.processes import await_ready
from tests.chain.cpu_labels.stage import HASWELL, HASWELLS, NAMES, PENRYNS, Stage, assert_each_once, patched, seconds
from tests.machine import is_below
from tests.proofs import proves

pytestmark = pytest.mark.slow

LIMIT = 20.0
"""Seconds for a round over all nodes."""
MOST_TICKS = 50
FUNCTION_LIMIT = "2.0"
"""Seconds that no event may take in a function."""


@pytest.fixture
def labelled(stage: Stage) -> Stage:
    """Give it with every node labelled, and nothing under way.

    Two changes are two rounds at once; what these collide in is left to ticks, each of which looks at a hundred nodes.
    """
    stage.wish({"cpuModels": [], "minCPUModel": ""})
    stage.offer()
    ticks = itertools.count()
    while stage.count(MARK) < len(HASWELLS) + len(PENRYNS) and next(ticks) < MOST_TICKS:
        stage.tick()
    stage.reaches(MARK, len(HASWELLS) + len(PENRYNS))
    stage.reaches(HASWELL, len(HASWELLS))
    stage.reaches(f"{FEATURE}avx=true,!{FEATURE}sse4.2", len(PENRYNS))
    stage.settle()
    return stage


@proves("OSV-30", "OSV-31", "OSV-36", "OSV-38")
def test_a_model_becomes_obsolete_on_a_thousand_nodes(labelled: Stage) -> None:
    """One patch for each that has it, none for another, soon; no event takes a function long; then there is rest."""
    stage, audit = labelled, labelled.audit()

    stage.wish({"cpuModels": ["Haswell"]})
    stage.reaches(HASWELL, 0)
    stage.settle()

    assert patched(audit) == dict.fromkeys(HASWELLS, 1)
    print(f"{len(HASWELLS)} of {len(NAMES)} nodes in {seconds(audit):.2f} s; events by seconds: {stage.longest()}")
    assert is_below(seconds(audit), LIMIT)
    assert stage.longest()[FUNCTION_LIMIT] == stage.longest()["+Inf"]


@proves("OSV-38")
def test_what_a_rack_offers_changes_for_its_nodes_alone(labelled: Stage) -> None:
    """By one ConfigMap for all racks."""
    stage, audit = labelled, labelled.audit()

    stage.offer(features="avx sse4.2")
    stage.reaches(f"{FEATURE}avx=true,{FEATURE}sse4.2=true,!cpu-model.node.kubevirt.io/Haswell", len(PENRYNS))
    stage.settle()

    assert patched(audit) == dict.fromkeys(PENRYNS, 1)


@proves("X-3")
def test_where_nothing_differs_ticks_write_nothing(labelled: Stage) -> None:
    """As many as every node has its turn by. What two rounds at once collide in is refused, and no write."""
    stage, audit = labelled, labelled.audit()

    for _ in range(len(NAMES) // 100 + 1):
        stage.tick()

    assert patched(audit) == {}


@proves("X-2", "X-3")
def test_a_kill_amid_a_round_costs_time_only(labelled: Stage) -> None:
    """What was not done is found by the ticks; no node is patched twice, but one of whose patch nobody heard may be."""
    stage, audit = labelled, labelled.audit()

    stage.wish({"cpuModels": ["Haswell"]})
    wait_for_some(stage)
    stage.product.kill_functions()
    stage.product.start_functions()
    stage.reaches(HASWELL, 0, 90)
    stage.settle()

    assert_each_once(audit)


def wait_for_some(stage: Stage) -> None:
    """Wait until a round is under way, and not over."""
    await_ready("the first nodes", lambda: stage.count(HASWELL) < len(HASWELLS), stage.product.servers)
    assert stage.count(HASWELL) > 0
