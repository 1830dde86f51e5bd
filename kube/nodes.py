"""Cordon and taints as JSON patches: what to send, and nothing when nothing would change (NMO-3, NMO-4, NMO-14)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kube.paths import Object, segment

Node = Mapping[str, Any]
NODES = "/api/v1/nodes"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NO_SCHEDULE = "NoSchedule"


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


def in_maintenance(node: Node, drain_taint: str) -> bool:
    """Cordoned and tainted: pods may be evicted (NMO-5)."""
    return is_cordoned(node) and not missing_taints(node, drain_taint)


def cordon_patch(node: Node) -> list[Object]:
    """JSON patch that makes the node unschedulable; empty when it is."""
    if is_cordoned(node):
        return []
    return [_same_node(node), {"op": "add", "path": "/spec/unschedulable", "value": True}]


def taint_patch(node: Node, drain_taint: str) -> list[Object]:
    """JSON patch that adds the missing maintenance taints, others left in place; empty when none is missing."""
    missing = missing_taints(node, drain_taint)
    return _taints_patch(node, [*(node["spec"].get("taints") or []), *missing]) if missing else []


def restore_patch(node: Node, drain_taints: Iterable[str], *, uncordon: bool) -> list[Object]:
    """JSON patch that takes drain taints off, whatever their value, and with `uncordon` the cordon and its taint."""
    keys: Collection[str] = {*drain_taints, *([UNSCHEDULABLE] if uncordon else [])}
    taints = node["spec"].get("taints") or []
    kept = [taint for taint in taints if not (taint["key"] in keys and taint.get("effect") == NO_SCHEDULE)]
    patch = _taints_patch(node, kept) if len(kept) < len(taints) else []
    if uncordon and is_cordoned(node):
        patch = patch or [_same_node(node)]
        patch.append({"op": "remove", "path": "/spec/unschedulable"})
    return patch


def _same_node(node: Node) -> Object:
    return {"op": "test", "path": "/metadata/uid", "value": node["metadata"]["uid"]}


def _taints_patch(node: Node, taints: list[Object]) -> list[Object]:
    """The guarded list write: fails when somebody changed the taints since they were read (NMO-4)."""
    return [
        _same_node(node),
        {"op": "test", "path": "/spec/taints", "value": node["spec"].get("taints")},
        {"op": "add", "path": "/spec/taints", "value": taints},
    ]


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort names of nodes by: node-2 comes before node-10."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]
