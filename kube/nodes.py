"""Builds the JSON patches for a node's cordon, labels and taints; a patch without changes is an empty list.

Requirements: NMO-3, NMO-4, NMO-14 and NMO-27b.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kube.paths import Object, encode_path_segment

Node = Mapping[str, Any]
NODES_PATH = "/api/v1/nodes"
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
NO_SCHEDULE = "NoSchedule"
MAINTENANCE_LABEL = "nodemaintenance.dev/maintenance"
"""Label on a node under maintenance; its value is the uid of the NodeMaintenance.

Event sources and `resync` select nodes by this label, so that other nodes cause no load (design rule 10).
"""
EXCLUDE_LABEL = "remediation.medik8s.io/exclude-from-remediation"
"""Label that excludes a node from remediation by the medik8s operators; "true" during a maintenance."""
EXCLUDED_BEFORE_LABEL = "nodemaintenance.dev/excluded-before"
"""Label that preserves the `EXCLUDE_LABEL` value from before the maintenance; `UNSET_VALUE` if there was none."""
UNSET_VALUE = "unset"


def build_node_path(name: str) -> str:
    """Return the API path of a node."""
    return f"{NODES_PATH}/{encode_path_segment(name)}"


def is_cordoned(node: Node) -> bool:
    """Return whether `spec.unschedulable` is true."""
    return bool(node["spec"].get("unschedulable"))


def find_missing_taints(node: Node, drain_taint: str) -> list[Object]:
    """Return the maintenance taints that the node lacks, in the order of requirement document 002 (DRN-13).

    A taint with the same key and effect counts as present regardless of its value, which is not changed (C4).
    """
    present = {(taint.get("key"), taint.get("effect")) for taint in node["spec"].get("taints") or []}
    return [
        {"key": key, "effect": NO_SCHEDULE}
        for key in (UNSCHEDULABLE_TAINT, drain_taint)
        if (key, NO_SCHEDULE) not in present
    ]


def select_taints_to_log(node: Node, drain_taint: str) -> list[Object]:
    """Return the taints to log before they are added, in the order of requirement document 002 (DRN-13, NMO-17a).

    `node.kubernetes.io/unschedulable` is always logged, even if the node has it: the controller manager also adds it to
    each cordoned node and may be faster. A drain taint that the node already has is not logged.
    """
    drain = [taint for taint in find_missing_taints(node, drain_taint) if taint["key"] == drain_taint]
    return [{"key": UNSCHEDULABLE_TAINT, "effect": NO_SCHEDULE}, *drain]


def is_tainted(node: Node, key: str) -> bool:
    """Return whether the node has a NoSchedule taint with this key and any value."""
    return key not in {taint["key"] for taint in find_missing_taints(node, key)}


def is_cordoned_and_tainted(node: Node, drain_taint: str) -> bool:
    """Return whether the node is cordoned and tainted, so that it takes no new pods (NMO-5)."""
    return is_cordoned(node) and not find_missing_taints(node, drain_taint)


def is_unreachable(node: Node) -> bool:
    """Return whether the node's Ready condition is Unknown, because its kubelet has stopped sending heartbeats."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "Unknown" for item in conditions)


def get_maintenance_uid(node: Node) -> str | None:
    """Return the uid in the node's maintenance label, None if the node does not have the label."""
    return _get_labels(node).get(MAINTENANCE_LABEL)


def is_labelled_with_maintenance(node: Node | None, uid: str) -> bool:
    """Return whether the node exists and its maintenance label contains this uid."""
    return node is not None and get_maintenance_uid(node) == uid


def has_maintenance_label(node: Node) -> bool:
    """Return whether the node has the maintenance label with any uid.

    The uid is not compared: otherwise two maintenances of one node would overwrite each other's label forever.
    """
    return MAINTENANCE_LABEL in _get_labels(node)


def is_in_maintenance(node: Node, drain_taint: str) -> bool:
    """Return whether the node is cordoned, tainted and labelled, so that its pods are watched and may be evicted."""
    return is_cordoned_and_tainted(node, drain_taint) and has_maintenance_label(node)


def build_cordon_patch(node: Node, maintenance_uid: str = "", stale_drain_taints: Collection[str] = ()) -> list[Object]:
    """Build the JSON patch that cordons and labels the node; empty if nothing would change.

    `maintenance_uid` is "" for a cordon without a maintenance, which sets no labels. If the node's label contains the
    uid of an earlier maintenance, which did not restore the node, the patch also removes that maintenance's drain
    taints, `stale_drain_taints`.
    """
    patch = _build_labels_patch(node, _build_maintenance_labels(node, maintenance_uid)) if maintenance_uid else []
    if maintenance_uid and get_maintenance_uid(node) not in (None, maintenance_uid):
        patch += _build_untaint_patch(node, stale_drain_taints)
    if not is_cordoned(node):
        patch.append({"op": "add", "path": "/spec/unschedulable", "value": True})
    preconditions = _build_preconditions(node) if maintenance_uid else [_build_uid_test(node)]
    return [*preconditions, *patch] if patch else []


def build_taint_patch(node: Node, drain_taint: str, maintenance_uid: str) -> list[Object]:
    """Build the JSON patch that adds missing maintenance taints and keeps all other taints; empty if none is missing.

    If the node has lost the maintenance label, the patch adds it again. Without the label, `resync` would not find the
    node and remove its taints after the maintenance.
    """
    missing = find_missing_taints(node, drain_taint)
    if not missing:
        return []
    labels = (
        []
        if has_maintenance_label(node)
        else _build_labels_patch(node, _build_maintenance_labels(node, maintenance_uid))
    )
    return [
        *_build_preconditions(node),
        *labels,
        *_build_taints_patch(node, [*(node["spec"].get("taints") or []), *missing]),
    ]


def build_restore_patch(node: Node, drain_taints: Iterable[str], *, next_maintenance_uid: str = "") -> list[Object]:
    """Build the JSON patch that removes the drain taints, the cordon, the unschedulable taint and the project's labels.

    Drain taints are removed regardless of their values. `next_maintenance_uid` is the uid of the node's next
    maintenance, "" if there is none. With a next maintenance, the cordon and the unschedulable taint stay, and the
    label gets that uid.
    """
    keys: Collection[str] = {*drain_taints, *([] if next_maintenance_uid else [UNSCHEDULABLE_TAINT])}
    patch = _build_untaint_patch(node, keys)
    if not next_maintenance_uid and is_cordoned(node):
        patch.append({"op": "remove", "path": "/spec/unschedulable"})
    if not next_maintenance_uid:
        patch += _build_labels_patch(node, _build_restored_labels(node))
    elif has_maintenance_label(node):
        patch += _build_labels_patch(node, {MAINTENANCE_LABEL: next_maintenance_uid})
    return [*_build_preconditions(node), *patch] if patch else []


def _build_preconditions(node: Node) -> list[Object]:
    """Build the JSON patch tests that the node's uid and maintenance label have not changed since the node was read.

    Cordoning and restoring a node change its label. The API server thus rejects a patch that was computed before such a
    change (design rule 12).
    """
    if _get_labels(node):
        return [
            _build_uid_test(node),
            {
                "op": "test",
                "path": _build_label_pointer(MAINTENANCE_LABEL),
                "value": _get_labels(node).get(MAINTENANCE_LABEL),
            },
        ]
    return [_build_uid_test(node), {"op": "test", "path": "/metadata/labels", "value": node["metadata"].get("labels")}]


def _build_uid_test(node: Node) -> Object:
    return {"op": "test", "path": "/metadata/uid", "value": node["metadata"]["uid"]}


def _get_labels(node: Node) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _build_label_pointer(name: str) -> str:
    return "/metadata/labels/" + name.replace("/", "~1")


def _build_maintenance_labels(node: Node, maintenance_uid: str) -> dict[str, str | None]:
    """Return the labels of a node that is cordoned for `maintenance_uid`."""
    before = _get_labels(node).get(EXCLUDED_BEFORE_LABEL, _get_labels(node).get(EXCLUDE_LABEL, UNSET_VALUE))
    return {MAINTENANCE_LABEL: maintenance_uid, EXCLUDED_BEFORE_LABEL: before, EXCLUDE_LABEL: "true"}


def _build_restored_labels(node: Node) -> dict[str, str | None]:
    """Return the project's labels after the node is restored; None removes a label, and `EXCLUDE_LABEL` is reset."""
    labels = _get_labels(node)
    before = (
        {EXCLUDE_LABEL: None if labels[EXCLUDED_BEFORE_LABEL] == UNSET_VALUE else labels[EXCLUDED_BEFORE_LABEL]}
        if EXCLUDED_BEFORE_LABEL in labels
        else {}
    )
    return {MAINTENANCE_LABEL: None, EXCLUDED_BEFORE_LABEL: None, **before}


def _build_labels_patch(node: Node, desired: Mapping[str, str | None]) -> list[Object]:
    """Build the JSON patch operations that set these labels, or remove those with the value None."""
    labels = _get_labels(node)
    changed = {name: value for name, value in desired.items() if labels.get(name) != value}
    if changed and not labels:
        return [{"op": "add", "path": "/metadata/labels", "value": changed}]
    return [
        {"op": "remove", "path": _build_label_pointer(name)}
        if value is None
        else {"op": "add", "path": _build_label_pointer(name), "value": value}
        for name, value in changed.items()
    ]


def _build_taints_patch(node: Node, taints: list[Object]) -> list[Object]:
    """Build the JSON patch operations that replace the node's taints unless they changed since the read (NMO-4)."""
    return [
        {"op": "test", "path": "/spec/taints", "value": node["spec"].get("taints")},
        {"op": "add", "path": "/spec/taints", "value": taints},
    ]


def _build_untaint_patch(node: Node, keys: Collection[str]) -> list[Object]:
    """Build the JSON patch operations that remove the NoSchedule taints with these keys; empty if there are none."""
    taints = node["spec"].get("taints") or []
    kept = [taint for taint in taints if not (taint["key"] in keys and taint.get("effect") == NO_SCHEDULE)]
    return _build_taints_patch(node, kept) if len(kept) < len(taints) else []


def build_natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in node names numerically: node-2 before node-10.

    Numbers are compared by length and then digit by digit, because `int` rejects strings with thousands of digits.
    """
    return [_build_number_key(word) if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]


def _build_number_key(digits: str) -> tuple[int, str]:
    significant = digits.lstrip("0")
    return len(significant), significant
