"""Tests for the membership of nodes in MachineConfigPools before, during and after an upgrade run."""

from __future__ import annotations

from typing import Any

import pytest

from kube.mutex import pools
from kube.mutex.objects import RULE_LABEL_PREFIX
from kube.mutex.versions import WORKER_LABEL
from kube.paths import Object
from kube.selectors import matches
from tests.proofs import proves

RULE_LABELS = [f"{RULE_LABEL_PREFIX}a.ns", f"{RULE_LABEL_PREFIX}b.ns"]
GATE_LABELS = dict.fromkeys(RULE_LABELS, "")
CANARY_SELECTOR = {"matchLabels": {WORKER_LABEL: ""}, "matchExpressions": [{"key": "isCanary", "operator": "Exists"}]}
TARGET_SELECTOR = {"matchLabels": {WORKER_LABEL: ""}, "matchExpressions": [{"key": "big", "operator": "DoesNotExist"}]}


def make_pool(selector: Any = None, **spec: Any) -> Object:
    metadata = {"name": "p", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {**({"nodeSelector": selector} if selector is not None else {}), **spec}}


def make_node(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


@proves("MUT-36", "MUT-37", "C24", "C25")
def test_rule_labels_decide_between_target_pool_and_canary_pool() -> None:
    """Check that rule labels decide whether a node belongs to the target pool, to the canary pool or to no pool."""
    canary, target = (
        pools.build_canary_selector(CANARY_SELECTOR, RULE_LABELS),
        pools.build_target_pool_selector(TARGET_SELECTOR, RULE_LABELS),
    )
    for gate_labels, expected in (
        (GATE_LABELS, (False, True)),
        ({}, (True, False)),
        ({RULE_LABELS[0]: ""}, (False, False)),
    ):
        labels = {WORKER_LABEL: "", **gate_labels}
        assert (matches(canary, labels), matches(target, labels)) == expected
    assert not matches(target, {WORKER_LABEL: "", "big": "", **GATE_LABELS})
    assert CANARY_SELECTOR["matchExpressions"] == [{"key": "isCanary", "operator": "Exists"}]


@proves("MUT-49")
@pytest.mark.parametrize("original", [CANARY_SELECTOR, TARGET_SELECTOR, {"matchLabels": {WORKER_LABEL: ""}}])
def test_rule_expressions_are_removed_from_pools_without_record(original: Object) -> None:
    """Check that a target pool gets its original selector back, and the canary pool the documented selector."""
    assert pools.remove_rule_expressions(pools.build_target_pool_selector(original, RULE_LABELS)) == original
    assert pools.remove_rule_expressions(original) == original
    assert pools.remove_rule_expressions(pools.build_canary_selector(CANARY_SELECTOR, RULE_LABELS)) == CANARY_SELECTOR
    assert pools.remove_rule_expressions(None) is None


@proves("MUT-21")
def test_pool_members_match_labels_and_expressions() -> None:
    """Check that members are unique and sorted by pool and name, and that a pool without a selector has no members."""
    nodes = [make_node("c", x="1"), make_node("a", x="1"), make_node("b", x="2"), make_node("d")]
    first_pool = make_pool({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["2"]}]})
    second_pool = make_pool({"matchLabels": {"x": "1"}})
    assert pools.list_members(first_pool, nodes) == ["a", "c", "d"]
    assert pools.list_members_of_pools([second_pool, first_pool, make_pool({"matchLabels": {"x": "2"}})], nodes) == [
        "a",
        "c",
        "d",
        "b",
    ]
    assert pools.list_members(make_pool(), nodes) == []
    assert pools.list_members(make_pool({}), nodes) == ["a", "b", "c", "d"]


@proves("MUT-34")
def test_unchanged_machine_config_pool_gets_no_patch() -> None:
    """Check that an unchanged pool gets no patch, and that each patch tests the resourceVersion that was read."""
    assert pools.build_pause_patch(make_pool(paused=True), paused=True) == []
    assert pools.build_selector_patch(make_pool(CANARY_SELECTOR), CANARY_SELECTOR) == []
    assert pools.build_selector_patch(make_pool(CANARY_SELECTOR), None) == []
    assert pools.build_release_patch(make_pool(paused=False), paused=False) == []
    patches = (
        pools.build_pause_patch(make_pool(), paused=True),
        pools.build_selector_patch(make_pool(CANARY_SELECTOR), TARGET_SELECTOR),
        pools.build_claim_patch(make_pool(), "uid"),
    )
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert [patch[0] for patch in patches] == [test] * 3


@proves("MUT-3")
@pytest.mark.parametrize(
    ("canary_pool", "targets", "message_part"),
    [
        (None, [], "not found"),
        (make_pool(CANARY_SELECTOR, paused=True), [], "paused"),
        (make_pool(CANARY_SELECTOR), ["p"], "in a target"),
        (make_pool({"matchLabels": {"x": ""}}), [], "must have"),
        (make_pool(), [], "must have"),
        (make_pool(CANARY_SELECTOR), ["q"], ""),
    ],
)
def test_problem_of_canary_pool_is_reported(canary_pool: Object | None, targets: list[str], message_part: str) -> None:
    """Check that each problem of a canary pool has a specific message."""
    problem = pools.find_canary_problem("p", canary_pool, targets, [make_node("a")])
    assert message_part in problem
    assert bool(message_part) is bool(problem)
