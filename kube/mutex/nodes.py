"""The labels that a run sets on its nodes, and the NodeMaintenances that delay a node's release.

Each node of a run has one label per rule, which blocks its upgrade, and one label for the run itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from kube.mutex.objects import RULE_LABEL_PREFIX, RUN_LABEL, Reference, build_rule_label
from kube.mutex.pools import get_labels
from kube.nodes import Node, has_maintenance_label
from kube.paths import Object


def get_run_id(node: Node) -> str:
    """Return the id of the run that the node belongs to, "" if it belongs to none."""
    return get_labels(node).get(RUN_LABEL, "")


def has_run_labels(node: Node, run_id: str, rules: Iterable[Reference]) -> bool:
    """Return whether the node has the labels of this run and of each rule."""
    return get_run_id(node) == run_id and all(build_rule_label(rule) in get_labels(node) for rule in rules)


def find_orphaned_nodes(nodes: Iterable[Object], active_run_ids: Container[str]) -> list[Object]:
    """Return the nodes that have the label of an inactive run, because a function wrote the label late.

    `active_run_ids` are the ids of the active runs.
    """
    return [node for node in nodes if get_run_id(node) and get_run_id(node) not in active_run_ids]


def is_released(node: Node) -> bool:
    """Return whether the node has no rule labels, so that it may be upgraded."""
    return not any(name.startswith(RULE_LABEL_PREFIX) for name in get_labels(node))


def build_run_labels_patch(node: Node, run_id: str, rules: Iterable[Reference]) -> list[Object]:
    """Build the JSON patch that adds the missing labels of a run; [] if none is missing.

    The patch fails if another client has changed the node since it was read.
    """
    desired = {RUN_LABEL: run_id, **{build_rule_label(rule): "" for rule in rules}}
    missing = {name: value for name, value in desired.items() if get_labels(node).get(name) != value}
    if not missing:
        return []
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
    if not get_labels(node):
        return [test, {"op": "add", "path": "/metadata/labels", "value": missing}]
    return [
        test,
        *({"op": "add", "path": _build_label_pointer(name), "value": value} for name, value in missing.items()),
    ]


def build_release_patch(node: Node, run_id: str) -> list[Object]:
    """Build the JSON patch that removes all rule labels; [] if there are none (MUT-43).

    The patch fails if the node belongs to a different run, so that a late write cannot release that run's node. If
    another client has removed the run's own label, the patch adds it again, because events about the node's upgrade
    depend on it.
    """
    gates = [name for name in get_labels(node) if name.startswith(RULE_LABEL_PREFIX)]
    if not gates or get_run_id(node) not in ("", run_id):
        return []
    preconditions: list[Object] = [{"op": "test", "path": _build_label_pointer(RUN_LABEL), "value": run_id}]
    if not get_run_id(node):
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
        preconditions = [test, {"op": "add", "path": _build_label_pointer(RUN_LABEL), "value": run_id}]
    return [*preconditions, *({"op": "remove", "path": _build_label_pointer(name)} for name in gates)]


def build_label_removal_patch(node: Node, run_id: str) -> list[Object]:
    """Build the JSON patch that removes all labels of a run; [] if the node does not belong to that run."""
    if get_run_id(node) != run_id:
        return []
    test = {"op": "test", "path": _build_label_pointer(RUN_LABEL), "value": run_id}
    run_labels = [name for name in get_labels(node) if name.startswith(RULE_LABEL_PREFIX) or name == RUN_LABEL]
    return [test, *({"op": "remove", "path": _build_label_pointer(name)} for name in run_labels)]


def _build_label_pointer(name: str) -> str:
    return "/metadata/labels/" + name.replace("/", "~1")


class Maintainer(NamedTuple):
    """The NodeMaintenance that owns a node.

    Attributes:
        name: Name of the NodeMaintenance.
        requester: User who requested it, "" if unknown.
        run_id: Id of the run whose Job created it, according to its label; "" for none.
    """

    name: str
    requester: str
    run_id: str


def find_release_blocker(node: Node, maintainer: Maintainer | None, run_id: str) -> str:
    """Return why this run must not release the node now; "" if no other requester's maintenance owns the node.

    `maintainer` is None if the NodeMaintenance in the node's label no longer exists, so that the node is about to be
    restored.
    """
    if not has_maintenance_label(node):
        return ""
    if maintainer is None:
        return "the node's label names a deleted NodeMaintenance; the run releases the node after its restoration"
    if maintainer.run_id == run_id:
        return ""
    requester_note = f", requested by {maintainer.requester}," if maintainer.requester else ""
    holder = f"NodeMaintenance {maintainer.name}{requester_note}"
    return f"{holder} holds the node; the run releases the node after that maintenance"
