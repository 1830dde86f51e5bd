"""Tests of the desired CPU labels, of the patch that sets them, and of the skip annotation."""

from __future__ import annotations

from typing import Any

import pytest

from kube.cpu.capabilities import Capability
from kube.cpu.hyperconverged import DEFAULTS
from kube.cpu.models import features_of
from kube.cpu.node_patch import FEATURE, MARK, MODEL, SKIP, due_labels, is_skipped, patch, skip_problem
from kube.cpu.problems import SKIP_UNREAD
from kube.paths import Object
from tests.kube.cpu.test_models import PRINTED
from tests.proofs import proves

HASWELL = Capability(frozenset({"Conroe", "Haswell", "conroe"}), features_of("Haswell") or frozenset())
OLDER = ("feature.node.kubernetes.io/cpu-model-Conroe", "feature.node.kubernetes.io/cpu-feature-avx")
FOREIGN = (
    *("cpu-model-migration.node.kubevirt.io/Haswell", "host-model-cpu.node.kubevirt.io/Haswell"),
    *("cpu-vendor.node.kubevirt.io/Intel", "node-labeller.kubevirt.io/obsolete-host-model"),
    *("feature.node.kubernetes.io/cpu-model.family", "feature.node.kubernetes.io/cpu-cpuid.AVX"),
    *("kubernetes.io/hostname", "cpu-modelx.node.kubevirt.io/Haswell"),
)


def node(*labels: str, annotations: Any = None, **more: str) -> Object:
    metadata: Object = {"name": "a", "uid": "u", "resourceVersion": "7", "annotations": annotations}
    return {"metadata": {**metadata, "labels": {**dict.fromkeys(labels, "true"), **more}}}


def operations(found: list[Object]) -> dict[str, set[str]]:
    """Return the labels that a patch changes, by operation, without the leading test operation."""
    assert found[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    done: dict[str, set[str]] = {}
    for each in found[1:]:
        done.setdefault(each["op"], set()).add(each["path"].removeprefix("/metadata/labels/").replace("~1", "/"))
    return done


@proves("OSV-30", "OSV-33", "OSV-35", "OSV-36")
def test_models_that_are_not_obsolete_and_features_that_the_least_one_has_not() -> None:
    """Compare model names case-sensitively, and add the label that marks the node as managed."""
    due = due_labels(HASWELL, DEFAULTS)

    assert due == dict.fromkeys(
        [MARK, f"{MODEL}Haswell", f"{MODEL}conroe", *(FEATURE + name for name in (*PRINTED.split(), "smep"))], "true"
    )


@proves("OSV-36")
def test_one_patch_adds_replaces_and_removes_what_is_ours_and_nothing_else() -> None:
    """Remove labels in KubeVirt's old format, and keep the labels of other owners."""
    there = node(f"{MODEL}Gone", f"{FEATURE}gone", MARK, *OLDER, *FOREIGN, **{f"{MODEL}Haswell": "false"})
    due = dict.fromkeys([MARK, f"{MODEL}Haswell", f"{FEATURE}avx"], "true")

    assert operations(patch(there, due)) == {
        "remove": {f"{MODEL}Gone", f"{FEATURE}gone", *OLDER},
        "replace": {f"{MODEL}Haswell"},
        "add": {f"{FEATURE}avx"},
    }


def test_a_node_that_is_as_it_should_be_needs_no_patch() -> None:
    """Return no patch if the labels are correct, or if the node has none of ours and needs none."""
    due = due_labels(HASWELL, DEFAULTS)

    assert patch(node(*due, *FOREIGN), due) == []
    assert patch(node(*FOREIGN), {}) == []


def test_a_node_without_any_label_gets_its_first() -> None:
    """Add the whole label map, because a JSON patch cannot add a key to a missing map."""
    bare: Object = {"metadata": {"name": "a", "resourceVersion": "7"}}
    assert patch(bare, {MARK: "true"})[1:] == [{"op": "add", "path": "/metadata/labels", "value": {MARK: "true"}}]


@proves("OSV-39", "C29")
@pytest.mark.parametrize(
    ("annotations", "skipped", "told"),
    [
        (None, False, False),
        ({}, False, False),
        ({SKIP: "true"}, True, False),
        ({SKIP: "false"}, False, False),
        ({SKIP: ""}, False, True),
        ({SKIP: "yes"}, False, True),
        ({SKIP: "True"}, False, True),
    ],
)
def test_the_annotation_skips_a_node_by_its_value(annotations: Any, skipped: bool, told: bool) -> None:
    """Skip a node only for the value `true`; report any other value except `false`."""
    item = node(annotations=annotations)
    problem = skip_problem(item)

    assert is_skipped(item) is skipped
    assert (problem is not None) is told
    if problem:
        assert problem.reason == SKIP_UNREAD
        assert f'is "{annotations[SKIP]}", and the node is labelled all the same: write "true"' in problem.message
