"""Tests of parsing CPU capabilities from ConfigMaps, and of the problems that are reported for invalid entries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kube.cpu.capabilities import Capability, read, strangers
from kube.cpu.models import features_of
from kube.cpu.problems import ILLEGAL_NAME, MALFORMED_INPUT, UNKNOWN_MODEL
from kube.paths import Object
from tests.proofs import proves

PLAIN = {"models": ["Haswell"], "features": ["avx2"]}


def config_map(name: str = "offered", **entries: Any) -> Object:
    data = {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}
    return {"metadata": {"name": name, "namespace": "ours", "uid": name}, "data": data}


@proves("OSV-38")
def test_an_entry_is_for_the_node_of_its_key_or_for_those_it_names() -> None:
    """Share one entry between nodes with the same hardware."""
    told = read([config_map(a=PLAIN, kind={**PLAIN, "nodes": ["b", "c"]})])
    capability = Capability(frozenset({"Haswell"}), frozenset({"avx2"}))

    assert told.nodes == {"a": capability, "b": capability, "c": capability}
    assert told.is_whole
    assert told.problems == []


@proves("OSV-38")
def test_the_name_of_a_cpu_stands_for_its_features() -> None:
    """Add the entry's features to those of its CPU model."""
    told = read([config_map(a={"models": [], "cpu": "Haswell", "features": ["vmx"]})])
    assert told.nodes["a"] == Capability(frozenset(), frozenset({*(features_of("Haswell") or ()), "vmx"}))


@proves("OSV-38")
def test_an_unknown_cpu_leaves_its_nodes_as_they_are() -> None:
    """Nodes with an unknown CPU model keep their labels, because the model's features are unknown."""
    told = read([config_map(a={"models": [], "cpu": "Unheard"}, b=PLAIN)])

    assert told.nodes["a"] is None
    assert told.nodes["b"] is not None
    [problem] = told.problems
    assert problem.reason == UNKNOWN_MODEL
    assert problem.message.startswith('data["a"].cpu "Unheard" is not known: write a model of libvirt')
    assert "the labels of a stay" in problem.message


@proves("OSV-38")
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "{",
            'data["a"] is no JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)): write',
        ),
        ("[" * 100_000, 'data["a"] is no JSON ('),
        ([], 'data["a"] is no object: write {"models": [...], "features": [...]}'),
        ({"features": []}, 'data["a"].models is missing: write the models that the nodes offer, [] for none'),
        ({"models": []}, 'data["a"] has neither features nor cpu: add "features": [...], or "cpu" with the name'),
        ({**PLAIN, "model": "x"}, 'data["a"] has unknown fields (model): allowed are cpu, features, models, nodes'),
        ({**PLAIN, "models": "x"}, 'data["a"].models is text: write a list of names'),
        ({**PLAIN, "models": [486]}, 'data["a"].models[0] is a number: write text, in quotes: "486"'),
        ({**PLAIN, "features": [None]}, 'data["a"].features[0] is null: write text'),
        ({**PLAIN, "cpu": {}}, 'data["a"].cpu is an object: write text'),
        ({**PLAIN, "nodes": [True]}, 'data["a"].nodes[0] is true or false: write text'),
    ],
)
def test_what_is_malformed_names_field_and_remedy(entry: Any, message: str) -> None:
    """Malformed entries make the whole input incomplete, because they could name any node."""
    told = read([config_map(a=entry, b=PLAIN)])

    assert list(told.nodes) == ["b"]
    assert not told.is_whole
    [problem] = told.problems
    assert (problem.reason, problem.about["name"]) == (MALFORMED_INPUT, "offered")
    assert problem.message.startswith(message)
    assert problem.message.endswith("; its nodes keep their labels until then")


@proves("OSV-33")
@pytest.mark.parametrize("name", ["a b", "é", "-a", "a-", "x" * 64, "a/b"])
def test_what_no_label_can_be_named_is_left_out_and_told(name: str) -> None:
    """Use the legal names of an entry, and report the illegal ones."""
    told = read([config_map(a={"models": [name, "486"], "features": [name, "sse4.1", "x" * 63]})])

    assert told.nodes["a"] == Capability(frozenset({"486"}), frozenset({"sse4.1", "x" * 63}))
    [problem] = told.problems
    assert problem.reason == ILLEGAL_NAME
    assert f'data["a"] has "{name}", which no label can be named' in problem.message


def test_a_node_that_is_named_twice_is_left_as_it_is() -> None:
    """Nodes in two entries get no capability, and the problem names both entries."""
    told = read([config_map("one", a=PLAIN, b=PLAIN), config_map("two", x={**PLAIN, "nodes": ["a", "b", "c"]})])

    assert [node for node, capability in told.nodes.items() if capability is None] == ["a", "b"]
    assert [problem.message for problem in told.problems] == [
        f'one data["{node}"] and two data["x"] both name {node}: name a node once; its labels stay until then'
        for node in ("a", "b")
    ]


def test_each_entry_that_names_nodes_which_are_not_there_is_told_once() -> None:
    """Report one problem per entry with nonexistent nodes, and none if all nodes exist."""
    told = read([config_map("one", a=PLAIN, x={**PLAIN, "nodes": ["b", "c", "d"]})])

    assert [problem.message for problem in strangers(told, {"a", "d"})] == [
        'one data["x"] names b, c, and no such node is there: kubectl get nodes has the names; '
        "its labels come when it comes"
    ]
    assert strangers(told, {"a", "b", "c", "d"}) == []


def test_an_entry_that_names_a_node_twice_names_it_once() -> None:
    assert read([config_map(x={**PLAIN, "nodes": ["a", "a"]})]).problems == []


def test_without_a_map_nothing_is_told() -> None:
    assert read([]) == read([config_map()]) == ({}, True, [], {})
