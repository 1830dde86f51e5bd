"""Cordon, labels and taints of a node as JSON patches, which are empty if nothing would change.

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
"""Label of a node under maintenance: the uid of the NodeMaintenance.

Event sources and `resync` select nodes by this label, so that other nodes cause no load (design rule 10).
"""
EXCLUDED = "remediation.medik8s.io/exclude-from-remediation"
"""Label that makes the medik8s remediators ignore a node: "true" during its maintenance."""
BEFORE = "nodemaintenance.dev/excluded-before"
"""Label with the value of `EXCLUDED` before the maintenance, `UNSET` if the node did not have that label."""
UNSET = "unset"


def node_path(name: str) -> str:
    """Return the path of a node."""
    return f"{NODES}/{segment(name)}"


def is_cordoned(node: Node) -> bool:
    """Return whether `spec.unschedulable` is true."""
    return bool(node["spec"].get("unschedulable"))


def missing_taints(node: Node, drain_taint: str) -> list[Object]:
    """Return the maintenance taints that the node lacks, in document 002's order (DRN-13).

    A taint with the same key and effect counts as present whatever its value, which is left unchanged (C4).
    """
    present = {(taint.get("key"), taint.get("effect")) for taint in node["spec"].get("taints") or []}
    return [
        {"key": key, "effect": NO_SCHEDULE} for key in (UNSCHEDULABLE, drain_taint) if (key, NO_SCHEDULE) not in present
    ]


def taints_to_log(node: Node, drain_taint: str) -> list[Object]:
    """Return the taints that the log names before they are added, in document 002's order (DRN-13, NMO-17a).

    `node.kubernetes.io/unschedulable` is always named, because the controller manager also adds it to each cordoned
    node and may be faster. A drain taint that the node already has is not named.
    """
    drain = [taint for taint in missing_taints(node, drain_taint) if taint["key"] == drain_taint]
    return [{"key": UNSCHEDULABLE, "effect": NO_SCHEDULE}, *drain]


def is_tainted(node: Node, key: str) -> bool:
    """Return whether the node has a NoSchedule taint with this key, whatever its value."""
    return key not in {taint["key"] for taint in missing_taints(node, key)}


def is_closed(node: Node, drain_taint: str) -> bool:
    """Return whether the node is cordoned and tainted, so that it takes no new pods (NMO-5)."""
    return is_cordoned(node) and not missing_taints(node, drain_taint)


def labelled_for(node: Node) -> str | None:
    """Return the uid in the node's maintenance label, None if the node does not have the label."""
    return _labels(node).get(LABEL)


def is_labelled_for(node: Node | None, uid: str) -> bool:
    """Return whether the node exists and its maintenance label names this maintenance."""
    return node is not None and labelled_for(node) == uid


def is_labelled(node: Node) -> bool:
    """Return whether the node has the maintenance label, whatever uid the label names.

    If the uid mattered, two maintenances of one node would overwrite each other's label forever.
    """
    return LABEL in _labels(node)


def in_maintenance(node: Node, drain_taint: str) -> bool:
    """Return whether the node is cordoned, tainted and labelled: pods may be evicted, and sources watch it."""
    return is_closed(node, drain_taint) and is_labelled(node)


def cordon_patch(node: Node, holder: str = "", others: Collection[str] = ()) -> list[Object]:
    """Build the JSON patch that cordons, labels and excludes the node; empty if nothing would change.

    `holder` is the uid of the maintenance, or "" for a cordon without a maintenance, which sets no labels. If the label
    names another maintenance, which did not restore the node, the patch also removes the drain taints `others`, which
    would otherwise remain.
    """
    patch = _labels_patch(node, _closing_labels(node, holder)) if holder else []
    if holder and labelled_for(node) not in (None, holder):
        patch += _untaint_patch(node, others)
    if not is_cordoned(node):
        patch.append({"op": "add", "path": "/spec/unschedulable", "value": True})
    as_read = _as_read(node) if holder else [_same_node(node)]
    return [*as_read, *patch] if patch else []


def taint_patch(node: Node, drain_taint: str, holder: str) -> list[Object]:
    """Build the JSON patch that adds the missing maintenance taints and keeps all others; empty if none is missing.

    A node that lost the maintenance label gets it again for `holder`. Without the label, a taint written late would
    never be found and removed.
    """
    missing = missing_taints(node, drain_taint)
    if not missing:
        return []
    labels = [] if is_labelled(node) else _labels_patch(node, _closing_labels(node, holder))
    return [*_as_read(node), *labels, *_taints_patch(node, [*(node["spec"].get("taints") or []), *missing])]


def restore_patch(node: Node, drain_taints: Iterable[str], *, heir: str = "") -> list[Object]:
    """Build the JSON patch that removes the drain taints, the cordon, its taint and our labels.

    Drain taints are removed whatever their value. If `heir` is set, to the uid of the node's next maintenance, the
    cordon and its taint stay, and the label names that maintenance.
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
    """Build the JSON patch tests for the node's uid and for the maintenance label as it was read.

    Cordoning and restoring a node change its label. The API server thus rejects a patch that was computed before such a
    change (design rule 12).
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
    """Return the labels of a node that is cordoned for `holder`."""
    before = _labels(node).get(BEFORE, _labels(node).get(EXCLUDED, UNSET))
    return {LABEL: holder, BEFORE: before, EXCLUDED: "true"}


def _opening_labels(node: Node) -> dict[str, str | None]:
    """Return our labels after a restore, None for those to remove; `EXCLUDED` gets its earlier value."""
    labels = _labels(node)
    before = {EXCLUDED: None if labels[BEFORE] == UNSET else labels[BEFORE]} if BEFORE in labels else {}
    return {LABEL: None, BEFORE: None, **before}


def _labels_patch(node: Node, wanted: Mapping[str, str | None]) -> list[Object]:
    """Build the operations that set these labels, or remove those that are None; empty if nothing changes."""
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
    """Build the write of the taint list, which fails if the taints changed since they were read (NMO-4)."""
    return [
        {"op": "test", "path": "/spec/taints", "value": node["spec"].get("taints")},
        {"op": "add", "path": "/spec/taints", "value": taints},
    ]


def _untaint_patch(node: Node, keys: Collection[str]) -> list[Object]:
    """Build the removal of the NoSchedule taints with these keys, whatever their value; empty if none exists."""
    taints = node["spec"].get("taints") or []
    kept = [taint for taint in taints if not (taint["key"] in keys and taint.get("effect") == NO_SCHEDULE)]
    return _taints_patch(node, kept) if len(kept) < len(taints) else []


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in node names numerically: node-2 before node-10.

    Numbers are compared by length and then digit by digit, because Python does not convert numbers with thousands of
    digits.
    """
    return [_number(word) if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]


def _number(digits: str) -> tuple[int, str]:
    significant = digits.lstrip("0")
    return len(significant), significant
