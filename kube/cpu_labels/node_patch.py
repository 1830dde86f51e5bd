"""Computes a node's CPU labels and the patch that sets them (OSV-30, OSV-33, OSV-36, OSV-39). Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kube.cpu_labels.capabilities import Capability, CapabilityInput
from kube.cpu_labels.hyperconverged import CpuModelSettings
from kube.cpu_labels.problems import SKIP_NODE_IGNORED, Problem
from kube.paths import Object

Node = Mapping[str, Any]
MODEL_LABEL_PREFIX = "cpu-model.node.kubevirt.io/"
FEATURE_LABEL_PREFIX = "cpu-feature.node.kubevirt.io/"
LEGACY_LABEL_PREFIXES = ("feature.node.kubernetes.io/cpu-model-", "feature.node.kubernetes.io/cpu-feature-")
"""Prefixes of the model and feature labels in KubeVirt's first format.

The prefixes `cpu-model.` and `cpu-cpuid.` belong to node-feature-discovery and are not included.
"""
OWN_LABEL_PREFIXES = (MODEL_LABEL_PREFIX, FEATURE_LABEL_PREFIX, *LEGACY_LABEL_PREFIXES)
MANAGED_LABEL = "nodemaintenance.dev/cpu-labels"
"""Label on every node that has CPU labels from this project.

It identifies these nodes if no ConfigMap describes their capabilities any longer.
"""
TRUE = "true"
SKIP_ANNOTATION = "node-labeller.kubevirt.io/skip-node"


def compute_desired_labels(capability: Capability, settings: CpuModelSettings) -> dict[str, str]:
    """Return the CPU labels of a node with this capability.

    They list the models that are not obsolete, and the features that the minimum model lacks.
    """
    models = capability.models - settings.obsolete_models
    features = capability.features - settings.base_features
    named = [*(MODEL_LABEL_PREFIX + name for name in models), *(FEATURE_LABEL_PREFIX + name for name in features)]
    return dict.fromkeys([MANAGED_LABEL, *sorted(named)], TRUE)


def is_skipped(node: Node) -> bool:
    """Return whether the node's skip annotation is true, which means that its labels must not change (C29)."""
    return _get_skip_annotation(node) == TRUE


def find_skip_problem(node: Node) -> Problem | None:
    """Return a problem if the node's skip annotation is neither true nor false, so that it has no effect."""
    value = _get_skip_annotation(node)
    if value in (None, TRUE, "false"):
        return None
    remedy = f'set "{TRUE}" to keep the labels unchanged, or remove the annotation'
    message = (
        f'metadata.annotations["{SKIP_ANNOTATION}"] is "{value}" instead of "true" or "false", '
        f"so the node is labelled: {remedy}"
    )
    return Problem.from_object(node, "v1", "Node", SKIP_NODE_IGNORED, message)


def has_managed_label(node: Node) -> bool:
    """Return whether the node has CPU labels from this project."""
    return MANAGED_LABEL in _get_labels(node)


def build_node_patch(node: Node, capability_input: CapabilityInput, settings: CpuModelSettings) -> list[Object]:
    """Build the JSON patch of the node's CPU labels; [] leaves the node unchanged.

    A node that no ConfigMap names any longer loses its CPU labels.
    """
    name = node["metadata"]["name"]
    if is_skipped(node):
        return []
    if name not in capability_input.nodes:
        is_unlisted = capability_input.is_complete and has_managed_label(node)
        return build_labels_patch(node, {}) if is_unlisted else []
    capability = capability_input.nodes[name]
    if capability is None:
        return []
    return build_labels_patch(node, compute_desired_labels(capability, settings))


def build_labels_patch(node: Node, desired: Mapping[str, str]) -> list[Object]:
    """Build the JSON patch that sets these CPU labels and removes the project's other ones; [] if nothing would change.

    The patch changes nothing else on the node. The API server rejects it if the node has changed since it was read,
    because that change may have added the skip annotation.
    """
    labels = _get_labels(node)
    stale = [
        name
        for name in labels
        if name not in desired and (name.startswith(OWN_LABEL_PREFIXES) or name == MANAGED_LABEL)
    ]
    changed = {name: value for name, value in desired.items() if labels.get(name) != value}
    if not (stale or changed):
        return []
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
    if not labels:
        return [test, {"op": "add", "path": "/metadata/labels", "value": changed}]
    removals = ({"op": "remove", "path": _build_label_pointer(name)} for name in stale)
    additions = (
        {"op": "replace" if name in labels else "add", "path": _build_label_pointer(name), "value": value}
        for name, value in changed.items()
    )
    return [test, *removals, *additions]


def list_label_names(node: Node, prefix: str) -> list[str]:
    """Return the sorted names of the CPU models or features in the node's labels with this prefix."""
    return sorted(name.removeprefix(prefix) for name in _get_labels(node) if name.startswith(prefix))


def _get_labels(node: Node) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _get_skip_annotation(node: Node) -> str | None:
    return (node["metadata"].get("annotations") or {}).get(SKIP_ANNOTATION)


def _build_label_pointer(name: str) -> str:
    return "/metadata/labels/" + name.replace("/", "~1")
