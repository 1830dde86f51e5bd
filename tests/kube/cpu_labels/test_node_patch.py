"""Tests for a node's desired CPU labels, for the patch that sets them, and for the skip annotation."""

from __future__ import annotations

from typing import Any

import pytest

from kube.cpu_labels.capabilities import Capability, get_model_features
from kube.cpu_labels.hyperconverged import DEFAULT_SETTINGS
from kube.cpu_labels.node_patch import (
    FEATURE_LABEL_PREFIX,
    MANAGED_LABEL,
    MODEL_LABEL_PREFIX,
    SKIP_ANNOTATION,
    build_labels_patch,
    compute_desired_labels,
    find_skip_problem,
    is_skipped,
)
from kube.cpu_labels.problems import SKIP_NODE_IGNORED
from kube.paths import Object
from tests.kube.cpu_labels.test_models import HASWELL_FEATURES_ABOVE_PENRYN
from tests.proofs import proves

HASWELL_CAPABILITY = Capability(
    frozenset({"Conroe", "Haswell", "conroe"}), get_model_features("Haswell") or frozenset()
)
LEGACY_LABELS = ("feature.node.kubernetes.io/cpu-model-Conroe", "feature.node.kubernetes.io/cpu-feature-avx")
FOREIGN_LABELS = (
    *("cpu-model-migration.node.kubevirt.io/Haswell", "host-model-cpu.node.kubevirt.io/Haswell"),
    *("cpu-vendor.node.kubevirt.io/Intel", "node-labeller.kubevirt.io/obsolete-host-model"),
    *("feature.node.kubernetes.io/cpu-model.family", "feature.node.kubernetes.io/cpu-cpuid.AVX"),
    *("kubernetes.io/hostname", "cpu-modelx.node.kubevirt.io/Haswell"),
)


def make_labelled_node(*labels: str, annotations: Any = None, **label_values: str) -> Object:
    metadata: Object = {"name": "a", "uid": "u", "resourceVersion": "7", "annotations": annotations}
    return {"metadata": {**metadata, "labels": {**dict.fromkeys(labels, "true"), **label_values}}}


def group_labels_by_operation(json_patch: list[Object]) -> dict[str, set[str]]:
    """Return the labels that a JSON patch changes, by operation, without its first operation `test`."""
    assert json_patch[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    labels_by_operation: dict[str, set[str]] = {}
    for operation in json_patch[1:]:
        label = operation["path"].removeprefix("/metadata/labels/").replace("~1", "/")
        labels_by_operation.setdefault(operation["op"], set()).add(label)
    return labels_by_operation


@proves("OSV-30", "OSV-33", "OSV-35", "OSV-36")
def test_desired_cpu_labels_exclude_obsolete_models_and_base_features() -> None:
    """Check that labels for obsolete models and base features are omitted, and the label for managed nodes is added."""
    desired = compute_desired_labels(HASWELL_CAPABILITY, DEFAULT_SETTINGS)

    assert desired == dict.fromkeys(
        [
            MANAGED_LABEL,
            f"{MODEL_LABEL_PREFIX}Haswell",
            f"{MODEL_LABEL_PREFIX}conroe",
            *(FEATURE_LABEL_PREFIX + name for name in (*HASWELL_FEATURES_ABOVE_PENRYN.split(), "smep")),
        ],
        "true",
    )


@proves("OSV-36")
def test_patch_changes_only_cpu_labels_of_product() -> None:
    """Check that labels in KubeVirt's old format are removed, and that other products' labels are kept."""
    node = make_labelled_node(
        f"{MODEL_LABEL_PREFIX}Gone",
        f"{FEATURE_LABEL_PREFIX}gone",
        MANAGED_LABEL,
        *LEGACY_LABELS,
        *FOREIGN_LABELS,
        **{f"{MODEL_LABEL_PREFIX}Haswell": "false"},
    )
    desired = dict.fromkeys([MANAGED_LABEL, f"{MODEL_LABEL_PREFIX}Haswell", f"{FEATURE_LABEL_PREFIX}avx"], "true")

    assert group_labels_by_operation(build_labels_patch(node, desired)) == {
        "remove": {f"{MODEL_LABEL_PREFIX}Gone", f"{FEATURE_LABEL_PREFIX}gone", *LEGACY_LABELS},
        "replace": {f"{MODEL_LABEL_PREFIX}Haswell"},
        "add": {f"{FEATURE_LABEL_PREFIX}avx"},
    }


def test_correct_labels_need_no_patch() -> None:
    """Check that a node gets no patch if its CPU labels are correct, or if it has none and needs none."""
    desired = compute_desired_labels(HASWELL_CAPABILITY, DEFAULT_SETTINGS)

    assert build_labels_patch(make_labelled_node(*desired, *FOREIGN_LABELS), desired) == []
    assert build_labels_patch(make_labelled_node(*FOREIGN_LABELS), {}) == []


def test_patch_adds_metadata_labels_if_missing() -> None:
    """Check that the patch adds all of `metadata.labels`, because a JSON patch cannot add a key to a missing object."""
    node: Object = {"metadata": {"name": "a", "resourceVersion": "7"}}
    assert build_labels_patch(node, {MANAGED_LABEL: "true"})[1:] == [
        {"op": "add", "path": "/metadata/labels", "value": {MANAGED_LABEL: "true"}}
    ]


@proves("OSV-39", "C29")
@pytest.mark.parametrize(
    ("annotations", "is_node_skipped", "is_reported"),
    [
        (None, False, False),
        ({}, False, False),
        ({SKIP_ANNOTATION: "true"}, True, False),
        ({SKIP_ANNOTATION: "false"}, False, False),
        ({SKIP_ANNOTATION: ""}, False, True),
        ({SKIP_ANNOTATION: "yes"}, False, True),
        ({SKIP_ANNOTATION: "True"}, False, True),
    ],
)
def test_skip_annotation_applies_only_with_value_true(
    annotations: Any, is_node_skipped: bool, is_reported: bool
) -> None:
    """Check that only the value `true` makes a node skipped, and that any other value except `false` is reported."""
    node = make_labelled_node(annotations=annotations)
    problem = find_skip_problem(node)

    assert is_skipped(node) is is_node_skipped
    assert (problem is not None) is is_reported
    if problem:
        assert problem.reason == SKIP_NODE_IGNORED
        assert (
            f'is "{annotations[SKIP_ANNOTATION]}" instead of "true" or "false", so the node is labelled: set "true"'
            in problem.message
        )
