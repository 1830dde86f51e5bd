"""Tests for the CPU label report, which compares the nodes' labels with those that `label-cpu` would set."""

from __future__ import annotations

from typing import Any

from console.operations.cpu_label_report import LabelState, build_report
from kube.cpu_labels.capabilities import Capability, get_model_features
from kube.cpu_labels.hyperconverged import DEFAULT_SETTINGS, HYPERCONVERGED_NAME
from kube.cpu_labels.node_patch import MODEL_LABEL_PREFIX, SKIP_ANNOTATION, compute_desired_labels
from kube.cpu_labels.problems import MALFORMED_SETTINGS, UNKNOWN_MODEL, UNKNOWN_NODE
from kube.paths import Object
from tests.kube.cpu_labels.test_capabilities import make_configmap

HASWELL_ENTRY = {"models": ["Haswell"], "cpu": "Haswell"}
HASWELL_LABELS = compute_desired_labels(
    Capability(frozenset({"Haswell"}), get_model_features("Haswell") or frozenset()), DEFAULT_SETTINGS
)
FOREIGN_LABELS = {f"{MODEL_LABEL_PREFIX}Penryn": "true"}


def make_node(name: str, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Object:
    metadata = {"name": name, "uid": name, "resourceVersion": "1"}
    return {"metadata": {**metadata, "labels": labels or {}, "annotations": annotations or {}}}


def make_hyperconverged(**obsolete_cpus: Any) -> Object:
    metadata = {
        "name": HYPERCONVERGED_NAME,
        "namespace": "hco",
        "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": metadata, "spec": {"obsoleteCPUs": obsolete_cpus}}


def test_report_compares_node_labels_with_configmap_entries() -> None:
    """Check the state of a labeled node, of nodes that `label-cpu` will change, and of nodes that it ignores."""
    entries: dict[str, Any] = dict.fromkeys(("labelled", "new", "skipped", "absent"), HASWELL_ENTRY)
    nodes = [
        make_node("labelled", HASWELL_LABELS),
        make_node("new"),
        make_node("skipped", annotations={SKIP_ANNOTATION: "true"}),
        make_node("unknown"),
        make_node("removed", HASWELL_LABELS),
        make_node("foreign", FOREIGN_LABELS),
        make_node("plain"),
    ]
    configmap = make_configmap(**entries, unknown={"models": [], "cpu": "Unheard"})

    report = build_report([configmap], [], nodes, is_passive=False)

    assert {name: group.state for group in report.groups for name in group.nodes} == {
        "labelled": LabelState.CURRENT,
        "new": LabelState.PENDING,
        "skipped": LabelState.SKIPPED,
        "absent": LabelState.MISSING,
        "unknown": LabelState.UNDETERMINED,
        "removed": LabelState.PENDING,
        "foreign": LabelState.UNDETERMINED,
    }
    assert report.unlisted_count == 1
    assert report.settings == DEFAULT_SETTINGS
    assert [problem.reason for problem in report.problems] == [UNKNOWN_MODEL, UNKNOWN_NODE]


def test_nodes_with_same_labels_and_configmap_entry_are_one_group() -> None:
    """Check that a group contains the models and features in the labels, and the ConfigMap entry for its nodes."""
    configmap = make_configmap(rack={**HASWELL_ENTRY, "nodes": ["a", "b"]})

    report = build_report([configmap], [], [make_node(name, HASWELL_LABELS) for name in "ba"], is_passive=False)

    (group,) = report.groups
    assert group.nodes == ("a", "b")
    assert group.models == ("Haswell",)
    assert "avx2" in group.features
    assert group.source == 'offered data["rack"]'


def test_report_explains_why_no_node_is_labeled() -> None:
    """Check that the report names a malformed HyperConverged field, or KubeVirt if it labels the nodes instead."""
    configmap, node = make_configmap(a=HASWELL_ENTRY), make_node("a", FOREIGN_LABELS)

    malformed = build_report([configmap], [make_hyperconverged(cpuModels="Haswell")], [node], is_passive=False)
    passive = build_report([configmap], [make_hyperconverged(minCPUModel="Nehalem")], [node], is_passive=True)

    assert [group.state for group in malformed.groups] == [LabelState.UNDETERMINED]
    assert malformed.settings is None
    assert [problem.reason for problem in malformed.problems] == [MALFORMED_SETTINGS]
    assert [group.state for group in passive.groups] == [LabelState.FOREIGN]
    assert passive.settings
    assert passive.settings.min_model == "Nehalem"
    assert passive.hyperconverged == f"hco/{HYPERCONVERGED_NAME}"
