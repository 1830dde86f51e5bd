"""Tests of which nodes belong to a pool before, during and after an upgrade run."""

from __future__ import annotations

from typing import Any

import pytest

from kube.mutex import pools
from kube.mutex.objects import RULE_LABEL
from kube.mutex.versions import WORKER
from kube.paths import Object
from kube.selectors import matches
from tests.proofs import proves

LABELS = [f"{RULE_LABEL}a.ns", f"{RULE_LABEL}b.ns"]
GATED = dict.fromkeys(LABELS, "")
CANARY = {"matchLabels": {WORKER: ""}, "matchExpressions": [{"key": "isCanary", "operator": "Exists"}]}
TARGET = {"matchLabels": {WORKER: ""}, "matchExpressions": [{"key": "big", "operator": "DoesNotExist"}]}


def pool(selector: Any = None, **spec: Any) -> Object:
    metadata = {"name": "p", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {**({"nodeSelector": selector} if selector is not None else {}), **spec}}


def node(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


@proves("MUT-36", "MUT-37", "C24", "C25")
def test_amid_a_run_a_node_is_in_one_of_the_two() -> None:
    """Nodes with all rule labels belong to the target, nodes with none to the canary, and others to neither."""
    canary, target = pools.released_selector(CANARY, LABELS), pools.gated_selector(TARGET, LABELS)
    for gates, expected in ((GATED, (False, True)), ({}, (True, False)), ({LABELS[0]: ""}, (False, False))):
        labels = {WORKER: "", **gates}
        assert (matches(canary, labels), matches(target, labels)) == expected
    assert not matches(target, {WORKER: "", "big": "", **GATED})
    assert CANARY["matchExpressions"] == [{"key": "isCanary", "operator": "Exists"}]


@proves("MUT-49")
@pytest.mark.parametrize("original", [CANARY, TARGET, {"matchLabels": {WORKER: ""}}])
def test_without_a_record_only_the_runs_expressions_go(original: Object) -> None:
    """Restore a target's own selector and the documented canary selector; keep selectors without run expressions."""
    assert pools.without_rules(pools.gated_selector(original, LABELS)) == original
    assert pools.without_rules(original) == original
    assert pools.without_rules(pools.released_selector(CANARY, LABELS)) == CANARY
    assert pools.without_rules(None) is None


@proves("MUT-21")
def test_members_are_told_by_the_whole_selector() -> None:
    """Return the members sorted by name, pool after pool and without duplicates; no selector selects no node."""
    nodes = [node("c", x="1"), node("a", x="1"), node("b", x="2"), node("d")]
    first = pool({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["2"]}]})
    second = pool({"matchLabels": {"x": "1"}})
    assert pools.members(first, nodes) == ["a", "c", "d"]
    assert pools.members_of_all([second, first, pool({"matchLabels": {"x": "2"}})], nodes) == ["a", "c", "d", "b"]
    assert pools.members(pool(), nodes) == []
    assert pools.members(pool({}), nodes) == ["a", "b", "c", "d"]


@proves("MUT-34")
def test_a_pool_that_is_as_it_should_be_gets_no_patch() -> None:
    """Return no patch if nothing would change; every other patch tests the resourceVersion that was read."""
    assert pools.pause_patch(pool(paused=True), paused=True) == []
    assert pools.selector_patch(pool(CANARY), CANARY) == []
    assert pools.selector_patch(pool(CANARY), None) == []
    assert pools.release_patch(pool(paused=False), paused=False) == []
    patches = (
        pools.pause_patch(pool(), paused=True),
        pools.selector_patch(pool(CANARY), TARGET),
        pools.claim_patch(pool(), "uid"),
    )
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert [patch[0] for patch in patches] == [test] * 3


@proves("MUT-3")
@pytest.mark.parametrize(
    ("found", "targets", "said"),
    [
        (None, [], "there is no"),
        (pool(CANARY, paused=True), [], "paused"),
        (pool(CANARY), ["p"], "in a target"),
        (pool({"matchLabels": {"x": ""}}), [], "must have"),
        (pool(), [], "must have"),
        (pool(CANARY), ["q"], ""),
    ],
)
def test_what_can_be_a_canary(found: Object | None, targets: list[str], said: str) -> None:
    """Return a specific message for each problem."""
    problem = pools.canary_problem("p", found, targets, [node("a")])
    assert said in problem
    assert bool(said) is bool(problem)
