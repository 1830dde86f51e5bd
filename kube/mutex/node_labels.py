"""The labels of a run on its nodes: one for each rule, which gates the upgrade, and one of the run itself. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from kube.mutex.objects import RULE_LABEL, RUN_LABEL, Reference, rule_label
from kube.mutex.pools import labels_of
from kube.paths import Object

Node = Mapping[str, Any]


def run_of(node: Node) -> str:
    """Id of the run whose node it is, "" for none."""
    return labels_of(node).get(RUN_LABEL, "")


def is_gated(node: Node, run_id: str, rules: Iterable[Reference]) -> bool:
    """Whether it carries the label of the run and that of each rule."""
    return run_of(node) == run_id and all(rule_label(rule) in labels_of(node) for rule in rules)


def strays(nodes: Iterable[Object], under_way: Container[str]) -> list[Object]:
    """The nodes that a late write has labelled for a run that is no more. `under_way` are the ids of runs."""
    return [node for node in nodes if run_of(node) and run_of(node) not in under_way]


def is_released(node: Node) -> bool:
    """Whether it carries no label of any rule."""
    return not any(name.startswith(RULE_LABEL) for name in labels_of(node))


def gate_patch(node: Node, run_id: str, rules: Iterable[Reference]) -> list[Object]:
    """JSON patch that gates a node, [] when it is gated. Refused when anybody wrote the node since it was read."""
    wanted = {RUN_LABEL: run_id, **{rule_label(rule): "" for rule in rules}}
    missing = {name: value for name, value in wanted.items() if labels_of(node).get(name) != value}
    if not missing:
        return []
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
    if not labels_of(node):
        return [test, {"op": "add", "path": "/metadata/labels", "value": missing}]
    return [test, *({"op": "add", "path": _path(name), "value": value} for name, value in missing.items())]


def release_patch(node: Node, run_id: str) -> list[Object]:
    """JSON patch that takes all labels of rules off, [] when there is none (MUT-43).

    It is refused where the node is another run's by then: a write that comes late must release nobody. Where somebody
    took the run's own label off it is put back, for by it the node's upgrade is seen.
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
    """JSON patch that takes all labels of a run off, [] when it is not that run's node."""
    if run_of(node) != run_id:
        return []
    test = {"op": "test", "path": _path(RUN_LABEL), "value": run_id}
    ours = [name for name in labels_of(node) if name.startswith(RULE_LABEL) or name == RUN_LABEL]
    return [test, *({"op": "remove", "path": _path(name)} for name in ours)]


def _path(name: str) -> str:
    return "/metadata/labels/" + name.replace("/", "~1")
