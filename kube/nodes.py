"""Cordon, labels and taints as JSON patches: what to send, nothing when nothing would change.

The rules are NMO-3, NMO-4, NMO-14 and NMO-27b.
"""

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
EXCLUDED = "remediation.medik8s.io/exclude-from-remediation"
"""Label by which the remediators of medik8s leave a node alone: "true" while it is maintained."""
BEFORE = "nodemaintenance.dev/excluded-before"
"""Label that remembers the value of `EXCLUDED` before the maintenance, `UNSET` where the node did not have it."""
UNSET = "unset"


def node_path(name: str) -> str:
    """Path of one node."""
    return f"{NODES}/{segment(name)}"


def is_cordoned(node: Node) -> bool:
    """`spec.unschedulable` is true."""
    return bool(node["spec"].get("unschedulable"))


def missing_taints(node: Node, drain_taint: str) -> list[Object]:
    """The maintenance taints the node lacks, in document 002's order (DRN-13).

    Key and effect decide; one with a value is left as it is (C4).
    """
    present = {(taint.get("key"), taint.get("effect")) for taint in node["spec"].get("taints") or []}
    return [
        {"key": key, "effect": NO_SCHEDULE} for key in (UNSCHEDULABLE, drain_taint) if (key, NO_SCHEDULE) not in present
    ]


def taints_to_log(node: Node, drain_taint: str) -> list[Object]:
    """Return the taints that the log names before they are added, in document 002's order (DRN-13, NMO-17a).

    `node.kubernetes.io/unschedulable` is always named: the controller manager adds it to each cordoned node, and is
    sometimes faster. A drain taint that is there already is not named.
    """
    drain = [taint for taint in missing_taints(node, drain_taint) if taint["key"] == drain_taint]
    return [{"key": UNSCHEDULABLE, "effect": NO_SCHEDULE}, *drain]


def is_tainted(node: Node, key: str) -> bool:
    """A NoSchedule taint of this key is on the node, whatever its value."""
    return key not in {taint["key"] for taint in missing_taints(node, key)}


def is_closed(node: Node, drain_taint: str) -> bool:
    """Cordoned and tainted: the node takes no new pods (NMO-5)."""
    return is_cordoned(node) and not missing_taints(node, drain_taint)


def labelled_for(node: Node) -> str | None:
    """The uid of the maintenance for which the node was labelled; None when our label is not on it."""
    return _labels(node).get(LABEL)


def is_labelled_for(node: Node | None, uid: str) -> bool:
    """Whether there is such a node, and our label on it names this maintenance."""
    return node is not None and labelled_for(node) == uid


def is_labelled(node: Node) -> bool:
    """Our label is on the node. Whose uid it names decides nothing: two that each want theirs would write for ever."""
    return LABEL in _labels(node)


def in_maintenance(node: Node, drain_taint: str) -> bool:
    """Closed and labelled: pods may be evicted, and what becomes of the node is heard of."""
    return is_closed(node, drain_taint) and is_labelled(node)


def cordon_patch(node: Node, holder: str = "", others: Collection[str] = ()) -> list[Object]:
    """JSON patch that makes the node unschedulable, labels it for `holder` and excludes it; empty when it is so.

    `holder` is the uid of the maintenance, "" for a cordon that none asked for: that one sets no label. Where the label
    names another one, which did not give the node back, the drain taints `others` go: nobody else would know of them.
    """
    patch = _labels_patch(node, _closing_labels(node, holder)) if holder else []
    if holder and labelled_for(node) not in (None, holder):
        patch += _untaint_patch(node, others)
    if not is_cordoned(node):
        patch.append({"op": "add", "path": "/spec/unschedulable", "value": True})
    as_read = _as_read(node) if holder else [_same_node(node)]
    return [*as_read, *patch] if patch else []


def taint_patch(node: Node, drain_taint: str, holder: str) -> list[Object]:
    """JSON patch that adds the missing maintenance taints, others left in place; empty when none is missing.

    A node that lost its labels gets them again, for `holder`: without, nobody would find what a late write left.
    """
    missing = missing_taints(node, drain_taint)
    if not missing:
        return []
    labels = [] if is_labelled(node) else _labels_patch(node, _closing_labels(node, holder))
    return [*_as_read(node), *labels, *_taints_patch(node, [*(node["spec"].get("taints") or []), *missing])]


def restore_patch(node: Node, drain_taints: Iterable[str], *, heir: str = "") -> list[Object]:
    """JSON patch that takes drain taints off, whatever their value, and with them the cordon, its taint and our labels.

    With `heir`, the uid of another maintenance of the node, cordon and its taint stay and our label names the heir.
    """
    keys: Collection[str] = {*drain_taints, *([] if heir else [UNSCHEDULABLE])}
    patch = _untaint_patch(node, keys)
    if not heir and is_cordoned(node):
        patch.append({"op": "remove", "path": "/spec/unschedulable"})
    if not heir:
        patch += _labels_patch(node, _opening_labels(node))
    elif is_labelled(node):
        patch += _labels_patch(node, {LABEL: heir})
    return [*_as_read(node), *patch] if patch else []


def _as_read(node: Node) -> list[Object]:
    """Tests that it is the same node, and labelled as it was read.

    Whoever closes a node or gives it back changes its label: what was decided before that is refused (design rule 12).
    """
    if _labels(node):
        return [_same_node(node), {"op": "test", "path": _label_path(LABEL), "value": _labels(node).get(LABEL)}]
    return [_same_node(node), {"op": "test", "path": "/metadata/labels", "value": node["metadata"].get("labels")}]


def _same_node(node: Node) -> Object:
    return {"op": "test", "path": "/metadata/uid", "value": node["metadata"]["uid"]}


def _labels(node: Node) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _label_path(name: str) -> str:
    return "/metadata/labels/" + name.replace("/", "~1")


def _closing_labels(node: Node, holder: str) -> dict[str, str | None]:
    """The labels of a node that is closed for `holder`."""
    before = _labels(node).get(BEFORE, _labels(node).get(EXCLUDED, UNSET))
    return {LABEL: holder, BEFORE: before, EXCLUDED: "true"}


def _opening_labels(node: Node) -> dict[str, str | None]:
    """What becomes of our labels when the node is given back, None for none; `EXCLUDED` is as it was before."""
    labels = _labels(node)
    before = {EXCLUDED: None if labels[BEFORE] == UNSET else labels[BEFORE]} if BEFORE in labels else {}
    return {LABEL: None, BEFORE: None, **before}


def _labels_patch(node: Node, wanted: Mapping[str, str | None]) -> list[Object]:
    """The operations by which the node gets these labels, None for none; empty when it has them."""
    labels = _labels(node)
    changed = {name: value for name, value in wanted.items() if labels.get(name) != value}
    if changed and not labels:
        return [{"op": "add", "path": "/metadata/labels", "value": changed}]
    return [
        {"op": "remove", "path": _label_path(name)}
        if value is None
        else {"op": "add", "path": _label_path(name), "value": value}
        for name, value in changed.items()
    ]


def _taints_patch(node: Node, taints: list[Object]) -> list[Object]:
    """The guarded list write: fails when somebody changed the taints since they were read (NMO-4)."""
    return [
        {"op": "test", "path": "/spec/taints", "value": node["spec"].get("taints")},
        {"op": "add", "path": "/spec/taints", "value": taints},
    ]


def _untaint_patch(node: Node, keys: Collection[str]) -> list[Object]:
    """Takes the taints of these keys off, whatever their value; empty when there is none."""
    taints = node["spec"].get("taints") or []
    kept = [taint for taint in taints if not (taint["key"] in keys and taint.get("effect") == NO_SCHEDULE)]
    return _taints_patch(node, kept) if len(kept) < len(taints) else []


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort names of nodes by: node-2 comes before node-10.

    Numbers are compared by length, then digit by digit: Python makes none of thousands of digits.
    """
    return [_number(word) if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]


def _number(digits: str) -> tuple[int, str]:
    significant = digits.lstrip("0")
    return len(significant), significant
