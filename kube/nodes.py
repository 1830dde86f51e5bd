"""Cordon, label and taints as JSON patches: what to send, nothing when nothing would change (NMO-3, NMO-4, NMO-14)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kube.paths import Object, segment

Node = Mapping[str, Any]
NODES = "/api/v1/nodes"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NO_SCHEDULE = "NoSchedule"
LABEL = "nodemaintenance.dev/maintenance"
"""Label of a node under maintenance: the uid of the NodeMaintenance. Sources and `resync` select nodes by it, so that
all other nodes cost nothing (design rule 10)."""
_LABEL_PATH = "/metadata/labels/" + LABEL.replace("/", "~1")


def node_path(name: str) -> str:
    """Path of one node."""
    return f"{NODES}/{segment(name)}"


def is_cordoned(node: Node) -> bool:
    """`spec.unschedulable` is true."""
    return bool(node["spec"].get("unschedulable"))


def missing_taints(node: Node, drain_taint: str) -> list[Object]:
    """The maintenance taints the node lacks. Key and effect decide; one with a value is left as it is (C4)."""
    present = {(taint.get("key"), taint.get("effect")) for taint in node["spec"].get("taints") or []}
    return [
        {"key": key, "effect": NO_SCHEDULE} for key in (drain_taint, UNSCHEDULABLE) if (key, NO_SCHEDULE) not in present
    ]


def is_closed(node: Node, drain_taint: str) -> bool:
    """Cordoned and tainted: the node takes no new pods (NMO-5)."""
    return is_cordoned(node) and not missing_taints(node, drain_taint)


def labelled_for(node: Node) -> str | None:
    """The uid of the maintenance for which the node was labelled; None when our label is not on it."""
    return _labels(node).get(LABEL)


def is_labelled(node: Node) -> bool:
    """Our label is on the node. Whose uid it names decides nothing: two that each want theirs would write for ever."""
    return LABEL in _labels(node)


def holder_of(node: Node) -> str:
    """The uid in our label, "" where there is none: whose label it was when it was last set."""
    return _labels(node).get(LABEL, "")


def in_maintenance(node: Node, drain_taint: str) -> bool:
    """Closed and labelled: pods may be evicted, and what becomes of the node is heard of."""
    return is_closed(node, drain_taint) and is_labelled(node)


def cordon_patch(node: Node, holder: str = "") -> list[Object]:
    """JSON patch that makes the node unschedulable and labels it for `holder`; empty when it is so.

    `holder` is the uid of the maintenance, "" for a cordon that none asked for: that one sets no label.
    """
    patch = _label_patch(node, holder) if holder else []
    if not is_cordoned(node):
        patch.append({"op": "add", "path": "/spec/unschedulable", "value": True})
    as_read = _as_read(node) if holder else [_same_node(node)]
    return [*as_read, *patch] if patch else []


def taint_patch(node: Node, drain_taint: str, holder: str) -> list[Object]:
    """JSON patch that adds the missing maintenance taints, others left in place; empty when none is missing.

    A node that lost its label gets it again with them, for `holder`: without, nobody would find what a late write left.
    """
    missing = missing_taints(node, drain_taint)
    if not missing:
        return []
    label = [] if is_labelled(node) else _label_patch(node, holder)
    return [*_as_read(node), *label, *_taints_patch(node, [*(node["spec"].get("taints") or []), *missing])]


def restore_patch(node: Node, drain_taints: Iterable[str], *, heir: str = "") -> list[Object]:
    """JSON patch that takes drain taints off, whatever their value, and with them the cordon, its taint and the label.

    With `heir`, the uid of another maintenance of the node, cordon and its taint stay and the label names the heir.
    """
    keys: Collection[str] = {*drain_taints, *([] if heir else [UNSCHEDULABLE])}
    taints = node["spec"].get("taints") or []
    kept = [taint for taint in taints if not (taint["key"] in keys and taint.get("effect") == NO_SCHEDULE)]
    patch = _taints_patch(node, kept) if len(kept) < len(taints) else []
    if not heir and is_cordoned(node):
        patch.append({"op": "remove", "path": "/spec/unschedulable"})
    if is_labelled(node):
        patch += _label_patch(node, heir) if heir else [{"op": "remove", "path": _LABEL_PATH}]
    return [*_as_read(node), *patch] if patch else []


def _as_read(node: Node) -> list[Object]:
    """Tests that it is the same node, and labelled as it was read.

    Whoever closes a node or gives it back changes its label: what was decided before that is refused (design rule 12).
    """
    if _labels(node):
        return [_same_node(node), {"op": "test", "path": _LABEL_PATH, "value": _labels(node).get(LABEL)}]
    return [_same_node(node), {"op": "test", "path": "/metadata/labels", "value": node["metadata"].get("labels")}]


def _same_node(node: Node) -> Object:
    return {"op": "test", "path": "/metadata/uid", "value": node["metadata"]["uid"]}


def _labels(node: Node) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _label_patch(node: Node, holder: str) -> list[Object]:
    """The operation that labels the node for `holder`; none when it is."""
    if _labels(node).get(LABEL) == holder:
        return []
    if _labels(node):
        return [{"op": "add", "path": _LABEL_PATH, "value": holder}]
    return [{"op": "add", "path": "/metadata/labels", "value": {LABEL: holder}}]


def _taints_patch(node: Node, taints: list[Object]) -> list[Object]:
    """The guarded list write: fails when somebody changed the taints since they were read (NMO-4)."""
    return [
        {"op": "test", "path": "/spec/taints", "value": node["spec"].get("taints")},
        {"op": "add", "path": "/spec/taints", "value": taints},
    ]


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort names of nodes by: node-2 comes before node-10."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]
