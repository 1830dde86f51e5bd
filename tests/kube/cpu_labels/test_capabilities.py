"""Tests for parsing CPU capabilities from ConfigMaps, and for reporting problems with invalid entries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kube.cpu_labels.capabilities import Capability, find_unknown_nodes, get_model_features, parse_capabilities
from kube.cpu_labels.problems import ILLEGAL_NAME, MALFORMED_INPUT, UNKNOWN_MODEL
from kube.paths import Object
from tests.proofs import proves

VALID_ENTRY = {"models": ["Haswell"], "features": ["avx2"]}


def make_configmap(name: str = "offered", **entries: Any) -> Object:
    data = {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}
    return {"metadata": {"name": name, "namespace": "ours", "uid": name}, "data": data}


@proves("OSV-38")
def test_entry_applies_to_the_node_in_its_key_or_in_its_node_list() -> None:
    """Check that a ConfigMap entry applies to the node in its key, or to several nodes in its node list."""
    parsed = parse_capabilities([make_configmap(a=VALID_ENTRY, kind={**VALID_ENTRY, "nodes": ["b", "c"]})])
    capability = Capability(frozenset({"Haswell"}), frozenset({"avx2"}))

    assert parsed.nodes == {"a": capability, "b": capability, "c": capability}
    assert parsed.is_complete
    assert parsed.problems == []


@proves("OSV-38")
def test_cpu_field_adds_features_of_cpu_model() -> None:
    """Check that an entry with a CPU model has the model's features in addition to its own."""
    parsed = parse_capabilities([make_configmap(a={"models": [], "cpu": "Haswell", "features": ["vmx"]})])
    assert parsed.nodes["a"] == Capability(frozenset(), frozenset({*(get_model_features("Haswell") or ()), "vmx"}))


@proves("OSV-38")
def test_entry_with_unknown_cpu_model_gives_no_capability() -> None:
    """Check that nodes with an unknown CPU model keep their labels, because the model's features are unknown."""
    parsed = parse_capabilities([make_configmap(a={"models": [], "cpu": "Unheard"}, b=VALID_ENTRY)])

    assert parsed.nodes["a"] is None
    assert parsed.nodes["b"] is not None
    [problem] = parsed.problems
    assert problem.reason == UNKNOWN_MODEL
    assert problem.message.startswith('data["a"].cpu "Unheard" is unknown: use a model name of libvirt')
    assert "the labels of a stay unchanged" in problem.message


@proves("OSV-38")
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "{",
            'data["a"] is not valid JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)',
        ),
        ("[" * 100_000, 'data["a"] is not valid JSON ('),
        ([], 'data["a"] is not an object: write {"models": [...], "features": [...]}'),
        ({"features": []}, 'data["a"].models is missing: list the models that the nodes offer, or write [] for none'),
        ({"models": []}, 'data["a"] has neither features nor cpu: add "features": [...], or "cpu" with the name'),
        (
            {**VALID_ENTRY, "model": "x"},
            'data["a"] has unknown fields (model): use only cpu, features, models, nodes',
        ),
        ({**VALID_ENTRY, "models": "x"}, 'data["a"].models is a string: use a list of names'),
        ({**VALID_ENTRY, "models": [486]}, 'data["a"].models[0] is a number: use a quoted string, such as "486"'),
        ({**VALID_ENTRY, "features": [None]}, 'data["a"].features[0] is null: use a quoted string'),
        ({**VALID_ENTRY, "cpu": {}}, 'data["a"].cpu is an object: use a quoted string'),
        ({**VALID_ENTRY, "nodes": [True]}, 'data["a"].nodes[0] is a boolean: use a quoted string'),
    ],
)
def test_malformed_entry_is_reported_with_field_and_remedy(entry: Any, message: str) -> None:
    """Check that the capabilities are incomplete if an entry is malformed, because it could name any node."""
    parsed = parse_capabilities([make_configmap(a=entry, b=VALID_ENTRY)])

    assert list(parsed.nodes) == ["b"]
    assert not parsed.is_complete
    [problem] = parsed.problems
    assert (problem.reason, problem.regarding["name"]) == (MALFORMED_INPUT, "offered")
    assert problem.message.startswith(message)
    assert problem.message.endswith("; until then, the labels of the entry's nodes stay unchanged")


@proves("OSV-33")
@pytest.mark.parametrize("name", ["a b", "é", "-a", "a-", "x" * 64, "a/b"])
def test_names_not_valid_in_label_are_skipped_and_reported(name: str) -> None:
    """Check that an entry's names that are valid in a label are used, and that the other names are reported."""
    parsed = parse_capabilities([make_configmap(a={"models": [name, "486"], "features": [name, "sse4.1", "x" * 63]})])

    assert parsed.nodes["a"] == Capability(frozenset({"486"}), frozenset({"sse4.1", "x" * 63}))
    [problem] = parsed.problems
    assert problem.reason == ILLEGAL_NAME
    assert f'data["a"] contains names that are invalid in a label ("{name}")' in problem.message


def test_node_in_two_entries_gets_no_capability() -> None:
    """Check that a node in two entries gets no capability, and that the reported problem names both entries."""
    parsed = parse_capabilities(
        [
            make_configmap("one", a=VALID_ENTRY, b=VALID_ENTRY),
            make_configmap("two", x={**VALID_ENTRY, "nodes": ["a", "b", "c"]}),
        ]
    )

    assert [node for node, capability in parsed.nodes.items() if capability is None] == ["a", "b"]
    assert [problem.message for problem in parsed.problems] == [
        f'one data["{node}"] and two data["x"] name the same nodes ({node}): name each node in one entry only; '
        "until then, the labels of these nodes stay unchanged"
        for node in ("a", "b")
    ]


def test_entry_with_unknown_nodes_is_reported_once() -> None:
    """Check that one problem is reported for each entry with unknown nodes, and none if all nodes exist."""
    parsed = parse_capabilities([make_configmap("one", a=VALID_ENTRY, x={**VALID_ENTRY, "nodes": ["b", "c", "d"]})])

    assert [problem.message for problem in find_unknown_nodes(parsed, {"a", "d"})] == [
        'one data["x"] names nodes that do not exist (b, c): use the names that kubectl get nodes lists; '
        "a node that joins later gets its labels then"
    ]
    assert find_unknown_nodes(parsed, {"a", "b", "c", "d"}) == []


def test_node_listed_twice_in_one_entry_is_accepted() -> None:
    assert parse_capabilities([make_configmap(x={**VALID_ENTRY, "nodes": ["a", "a"]})]).problems == []


def test_capabilities_are_empty_without_configmaps_or_entries() -> None:
    assert parse_capabilities([]) == parse_capabilities([make_configmap()]) == ({}, True, [], {})
