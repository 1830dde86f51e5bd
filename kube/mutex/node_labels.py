"""Labels of a run on its nodes: one for each rule, which blocks the upgrade, and one for the run itself."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from kube.mutex.objects import RULE_LABEL, RUN_LABEL, Reference, rule_label
from kube.mutex.pools import labels_of
from kube.paths import Object

Node = Mapping[str, Any]


def run_of(node: Node) -> str:
    """Return the id of the run that the node belongs to, "" for none."""
    return labels_of(node).get(RUN_LABEL, "")


def is_gated(node: Node, run_id: str, rules: Iterable[Reference]) -> bool:
    """Return whether the node carries the labels of the run and of each rule."""
    return run_of(node) == run_id and all(rule_label(rule) in labels_of(node) for rule in rules)


def strays(nodes: Iterable[Object], under_way: Container[str]) -> list[Object]:
    """Return the nodes that a late write labelled for an inactive run; `under_way` are the ids of the active runs."""
    return [node for node in nodes if run_of(node) and run_of(node) not in under_way]


def is_released(node: Node) -> bool:
    """Return whether the node carries no rule labels."""
    return not any(name.startswith(RULE_LABEL) for name in labels_of(node))


def gate_patch(node: Node, run_id: str, rules: Iterable[Reference]) -> list[Object]:
    """Build the JSON patch that adds the missing labels, [] if none is missing.

    It fails if another client has changed the node since it was read.
    """
    wanted = {RUN_LABEL: run_id, **{rule_label(rule): "" for rule in rules}}
    missing = {name: value for name, value in wanted.items() if labels_of(node).get(name) != value}
    if not missing:
        return []
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
    if not labels_of(node):
        return [test, {"op": "add", "path": "/metadata/labels", "value": missing}]
    return [test, *({"op": "add", "path": _path(name), "value": value} for name, value in missing.items())]


def release_patch(node: Node, run_id: str) -> list[Object]:
    """Build the JSON patch that removes all rule labels, [] if there are none (MUT-43).

    The patch fails if the node belongs to another run, so that a late write cannot release that run's node. If another
    client removed the run's own label, the patch adds it again, because events about the upgrade depend on it.
    """
    gates = [name for name in labels_of(node) if name.startswith(RULE_LABEL)]
    if not gates or run_of(node) not in ("", run_id):
        return []
    first: list[Object] = [{"op": "test", "path": _path(RUN_LABEL), "value": run_id}]
    if not run_of(node):
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
        first = [test, {"op": "add", "path": _path(RUN_LABEL), "value": run_id}]
    return [*first, *({"op": "remove", "path": _path(name)} for name in gates)]


def clear_patch(node: Node, run_id: str) -> list[Object]:
    """Build the JSON patch that removes all labels of a run, [] if the node does not belong to that run."""
    if run_of(node) != run_id:
        return []
    test = {"op": "test", "path": _path(RUN_LABEL), "value": run_id}
    ours = [name for name in labels_of(node) if name.startswith(RULE_LABEL) or name == RUN_LABEL]
    return [test, *({"op": "remove", "path": _path(name)} for name in ours)]


def _path(name: str) -> str:
    return "/metadata/labels/" + name.replace("/", "~1")
