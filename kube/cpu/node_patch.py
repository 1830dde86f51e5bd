"""Computes a node's CPU labels and the patch that sets them (OSV-30, OSV-33, OSV-36, OSV-39). Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kube.cpu.capabilities import Capability
from kube.cpu.hyperconverged import Settings
from kube.cpu.problems import SKIP_UNREAD, Problem
from kube.paths import Object

Node = Mapping[str, Any]
MODEL = "cpu-model.node.kubevirt.io/"
FEATURE = "cpu-feature.node.kubevirt.io/"
OLDER = ("feature.node.kubernetes.io/cpu-model-", "feature.node.kubernetes.io/cpu-feature-")
"""Prefixes of the same labels in KubeVirt's first format.

The prefixes `cpu-model.` and `cpu-cpuid.` belong to node-feature-discovery.
"""
OURS = (MODEL, FEATURE, *OLDER)
MARK = "nodemaintenance.dev/cpu-labels"
"""Label that marks every node with CPU labels of this project.

It identifies these nodes when no ConfigMap describes their capabilities any more.
"""
TRUE = "true"
SKIP = "node-labeller.kubevirt.io/skip-node"


def due_labels(capability: Capability, settings: Settings) -> dict[str, str]:
    """Return the labels of a node with this capability.

    These are the models that are not obsolete, and the features that the minimum model lacks.
    """
    models = capability.models - settings.obsolete
    features = capability.features - settings.base
    named = [*(MODEL + name for name in models), *(FEATURE + name for name in features)]
    return dict.fromkeys([MARK, *sorted(named)], TRUE)


def is_skipped(node: Node) -> bool:
    """Return whether the skip annotation is true, so that the node's labels must not change (C29)."""
    return _annotation(node) == TRUE


def skip_problem(node: Node) -> Problem | None:
    """Return a problem if the skip annotation is neither true nor false; such a node is labelled."""
    value = _annotation(node)
    if value in (None, TRUE, "false"):
        return None
    remedy = f'write "{TRUE}" to keep its labels as they are, or remove it'
    message = f'metadata.annotations["{SKIP}"] is "{value}", and the node is labelled all the same: {remedy}'
    return Problem.at(node, "v1", "Node", SKIP_UNREAD, message)


def is_marked(node: Node) -> bool:
    """Return whether the node carries CPU labels of this project."""
    return MARK in _labels(node)


def patch(node: Node, due: Mapping[str, str]) -> list[Object]:
    """Build the JSON patch that sets these labels and removes the project's others, [] if nothing would change.

    The patch changes nothing else on the node. The API server rejects it if the node changed since it was read, because
    that change may have added the skip annotation.
    """
    labels = _labels(node)
    gone = [name for name in labels if name not in due and (name.startswith(OURS) or name == MARK)]
    changed = {name: value for name, value in due.items() if labels.get(name) != value}
    if not (gone or changed):
        return []
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
    if not labels:
        return [test, {"op": "add", "path": "/metadata/labels", "value": changed}]
    removed = ({"op": "remove", "path": _path(name)} for name in gone)
    written = (
        {"op": "replace" if name in labels else "add", "path": _path(name), "value": value}
        for name, value in changed.items()
    )
    return [test, *removed, *written]


def _labels(node: Node) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _annotation(node: Node) -> str | None:
    return (node["metadata"].get("annotations") or {}).get(SKIP)


def _path(name: str) -> str:
    return "/metadata/labels/" + name.replace("/", "~1")
