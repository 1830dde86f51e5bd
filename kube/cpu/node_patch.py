"""Labels due to a node for its CPU, and the one patch that gives it these (OSV-30, OSV-33, OSV-36, OSV-39). Pure."""

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
"""Prefixes of the same labels in KubeVirt's first form. `cpu-model.` and `cpu-cpuid.` are of node-feature-discovery."""
OURS = (MODEL, FEATURE, *OLDER)
MARK = "nodemaintenance.dev/cpu-labels"
"""Label of a node that carries labels of ours: by it they are found when nothing says any more what the node offers."""
TRUE = "true"
SKIP = "node-labeller.kubevirt.io/skip-node"


def due_labels(capability: Capability, settings: Settings) -> dict[str, str]:
    """The labels of a node that offers this: models that are not obsolete, features that the least model has not."""
    models = capability.models - settings.obsolete
    features = capability.features - settings.base
    named = [*(MODEL + name for name in models), *(FEATURE + name for name in features)]
    return dict.fromkeys([MARK, *sorted(named)], TRUE)


def is_skipped(node: Node) -> bool:
    """Whether somebody wants the labels as they are: the annotation is there, and true (C29)."""
    return _annotation(node) == TRUE


def skip_problem(node: Node) -> Problem | None:
    """An annotation that says neither; the node is labelled."""
    value = _annotation(node)
    if value in (None, TRUE, "false"):
        return None
    remedy = f'write "{TRUE}" to keep its labels as they are, or remove it'
    message = f'metadata.annotations["{SKIP}"] is "{value}", and the node is labelled all the same: {remedy}'
    return Problem.at(node, "v1", "Node", SKIP_UNREAD, message)


def is_marked(node: Node) -> bool:
    """Whether it carries labels of ours."""
    return MARK in _labels(node)


def patch(node: Node, due: Mapping[str, str]) -> list[Object]:
    """JSON patch that gives the node these labels and takes off all others of ours, [] where nothing would change.

    The rest of the node is not touched. Refused when anybody wrote the node since it was read: he may have skipped it.
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
