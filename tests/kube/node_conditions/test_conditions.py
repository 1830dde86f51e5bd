"""Tests for the node conditions that describe a maintenance, and for the patch that writes them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.node_conditions.conditions import (
    CONDITION_TYPES,
    CONDITIONS_BY_STATE,
    CONDITIONS_LABEL,
    DRAIN_IN_PROGRESS,
    DRAINED,
    MAINTENANCE_IN_PROGRESS,
    MAINTENANCE_PLANNED,
    LifecycleState,
    build_conditions_patch,
    classify_node,
    select_maintenance,
    trim_node_to_conditions,
)
from kube.nodes import NO_SCHEDULE, UNSCHEDULABLE_TAINT
from kube.paths import Object
from tests.sources import ROOT

PAGE_TEXT = (ROOT / "docs" / "node-conditions.md").read_text()
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
NOW_TEXT, EARLIER_TEXT = "2026-03-01T12:00:00Z", "2026-03-01T11:00:00Z"
KUBELET_CONDITION = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready"}


def build_node(
    *, closed: bool = True, drain_taint: str = MEDIK8S.drain_taint, label: str | None = None, uid: str = "node-uid"
) -> Object:
    """Build a node with a condition of the kubelet, which is cordoned and tainted if `closed` is set."""
    taints = [{"key": key, "effect": NO_SCHEDULE} for key in (UNSCHEDULABLE_TAINT, drain_taint)]
    spec = {"unschedulable": True, "taints": taints} if closed else {}
    labels = {"kubernetes.io/hostname": "n1"} | ({CONDITIONS_LABEL: label} if label is not None else {})
    metadata = {"name": "n1", "uid": uid, "resourceVersion": "7", "labels": labels}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": [dict(KUBELET_CONDITION)]}}


def build_maintenance(
    name: str = "first", *, begun: bool = True, phase: str = "", node_uid: str = "node-uid", **metadata: Any
) -> Object:
    """Build a NodeMaintenance of node n1 that has begun unless `begun` is false."""
    uid = f"uid-{name}"
    counts = json.dumps({"totalpods": 1, "evictionPods": 1, "uid": uid})
    begun_metadata = {
        "finalizers": [m.FINALIZER],
        "annotations": {m.INITIAL_COUNTS_ANNOTATION: counts},
        "ownerReferences": [{"kind": "Node", "name": "n1", "uid": node_uid}],
    }
    return {
        "apiVersion": MEDIK8S.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": name, "uid": uid, **(begun_metadata if begun else {}), **metadata},
        "spec": {"nodeName": "n1", "reason": "new kernel"},
        "status": {"phase": phase} if phase else {},
    }


def apply_patch(node: Object, patch: Object) -> Object:
    """Return the node with the patch applied as the API server merges it: labels by name, conditions by type."""
    labels = {**node["metadata"]["labels"], **patch["metadata"]["labels"]}
    conditions = {item["type"]: item for item in node["status"]["conditions"]}
    for item in patch.get("status", {}).get("conditions", []):
        if item.get("$patch") == "delete":
            del conditions[item["type"]]
        else:
            conditions[item["type"]] = {**conditions.get(item["type"], {}), **item}
    kept_labels = {name: value for name, value in labels.items() if value is not None}
    return {
        **node,
        "metadata": {**node["metadata"], "labels": kept_labels},
        "status": {"conditions": list(conditions.values())},
    }


def get_condition_statuses(node: Object) -> dict[str, str]:
    """Return a map from condition type to status for the conditions of the product."""
    return {item["type"]: item["status"] for item in node["status"]["conditions"] if item["type"] in CONDITION_TYPES}


@pytest.mark.parametrize(
    ("node", "maintenance", "expected"),
    [
        (build_node(), build_maintenance(begun=False), LifecycleState.WAITING),
        (build_node(closed=False), build_maintenance(), LifecycleState.NOT_CORDONED),
        (build_node(drain_taint=KUBEVIRT.drain_taint), build_maintenance(), LifecycleState.NOT_CORDONED),
        (build_node(closed=False), build_maintenance(phase=m.SUCCEEDED), LifecycleState.NOT_CORDONED),
        (build_node(), build_maintenance(), LifecycleState.DRAINING),
        (build_node(), build_maintenance(phase=m.RUNNING), LifecycleState.DRAINING),
        (build_node(), build_maintenance(phase=m.SUCCEEDED), LifecycleState.DRAINED),
    ],
    ids=["waiting", "not cordoned", "other taint", "uncordoned after the drain", "no status", "running", "succeeded"],
)
def test_reported_state_depends_on_node_and_maintenance(
    node: Object, maintenance: Object, expected: LifecycleState
) -> None:
    """Check that only a cordoned and tainted node is reported as draining, and as drained only after success."""
    assert classify_node(maintenance, node) == expected


def test_node_with_reported_missing_cordon_is_not_drained() -> None:
    """Check that a node is not reported as drained while the maintenance's status reports a missing cordon or taint."""
    maintenance = build_maintenance(phase=m.SUCCEEDED)
    maintenance["status"]["conditions"] = [{"type": "Cordoned", "status": "False"}]

    assert classify_node(maintenance, build_node()) == LifecycleState.DRAINING


def test_each_state_sets_all_conditions_without_contradiction() -> None:
    """Check that no state is both draining and drained, or has a maintenance that is both planned and in progress."""
    assert set(CONDITIONS_BY_STATE) == set(LifecycleState)
    for observations in CONDITIONS_BY_STATE.values():
        assert set(observations) == set(CONDITION_TYPES)
        is_true = {name: observation.is_true for name, observation in observations.items()}
        assert not (is_true[DRAIN_IN_PROGRESS] and is_true[DRAINED])
        assert is_true[MAINTENANCE_PLANNED] is not is_true[MAINTENANCE_IN_PROGRESS]
        assert is_true[MAINTENANCE_IN_PROGRESS] is is_true[DRAINED]


@pytest.mark.parametrize(
    ("maintenances", "expected"),
    [
        ([], None),
        ([build_maintenance("waiting", begun=False), build_maintenance("begun")], "begun"),
        ([build_maintenance("older", begun=False), build_maintenance("newer", begun=False)], "older"),
        ([build_maintenance("deleted", deletionTimestamp=NOW_TEXT)], None),
        (
            [build_maintenance("deleted", deletionTimestamp=NOW_TEXT), build_maintenance("successor", begun=False)],
            "successor",
        ),
        ([build_maintenance("on-an-earlier-node", node_uid="other-uid")], None),
    ],
    ids=["none", "begun first", "older first", "deleted", "successor", "recreated node"],
)
def test_conditions_describe_one_maintenance(maintenances: list[Object], expected: str | None) -> None:
    """Check that the node's conditions describe the maintenance that has begun, and never one that has ended."""
    selected = select_maintenance(maintenances, build_node())

    assert (selected["metadata"]["name"] if selected else None) == expected


def test_maintenance_that_lost_lease_has_no_node_conditions() -> None:
    """NMO-27a: a maintenance that lost the node's lease has no conditions, because it only restores the node."""
    maintenance = build_maintenance(phase=m.FAILED)
    maintenance["status"]["errorOnLeaseCount"] = m.MAX_LEASE_ERRORS + 1

    assert select_maintenance([maintenance], build_node()) is None


def test_patch_writes_conditions_and_label_of_maintenance() -> None:
    """Check that the patch contains only the four conditions, the label and the resourceVersion."""
    patch = build_conditions_patch(build_node(), build_maintenance(), NOW)

    assert patch["metadata"] == {"resourceVersion": "7", "labels": {CONDITIONS_LABEL: "uid-first"}}
    assert {item["type"] for item in patch["status"]["conditions"]} == set(CONDITION_TYPES)
    (drain,) = (item for item in patch["status"]["conditions"] if item["type"] == DRAIN_IN_PROGRESS)
    assert drain == {
        "type": DRAIN_IN_PROGRESS,
        "status": "True",
        "reason": "AdminRequested",
        "message": 'NodeMaintenance "first": new kernel',
        "lastHeartbeatTime": NOW_TEXT,
        "lastTransitionTime": NOW_TEXT,
    }


def test_unchanged_node_conditions_need_no_patch() -> None:
    """Design rule 2: if the node already has the conditions, there is no patch, whatever the current time."""
    node, maintenance = build_node(), build_maintenance()

    patched = apply_patch(node, build_conditions_patch(node, maintenance, NOW))

    assert build_conditions_patch(patched, maintenance, NOW + timedelta(hours=1)) == {}


def test_transition_time_of_node_condition_changes_only_with_status() -> None:
    """Check that `lastTransitionTime` changes with a condition's status, but not with its message."""
    node, maintenance = build_node(), build_maintenance()
    earlier = apply_patch(node, build_conditions_patch(node, maintenance, NOW - timedelta(hours=1)))
    changed_maintenance = {**maintenance, "spec": {"nodeName": "n1", "reason": "new disk"}}

    same_status = build_conditions_patch(earlier, changed_maintenance, NOW)["status"]["conditions"]
    new_status = build_conditions_patch(earlier, build_maintenance(phase=m.SUCCEEDED), NOW)["status"]["conditions"]

    assert {(item["lastTransitionTime"], item["lastHeartbeatTime"]) for item in same_status} == {
        (EARLIER_TEXT, NOW_TEXT)
    }
    assert {(item["lastTransitionTime"], item["lastHeartbeatTime"]) for item in new_status} == {(NOW_TEXT, NOW_TEXT)}
    assert len(same_status) == len(new_status) == len(CONDITION_TYPES)


@pytest.mark.parametrize("closed", [True, False])
def test_kubelet_condition_is_never_changed(closed: bool) -> None:
    """Check that no patch that writes or removes conditions changes a condition of the kubelet."""
    node, maintenance = build_node(closed=closed), build_maintenance()

    patched = apply_patch(node, build_conditions_patch(node, maintenance, NOW))
    removed = apply_patch(patched, build_conditions_patch(patched, None, NOW))

    assert KUBELET_CONDITION in patched["status"]["conditions"]
    assert removed["status"]["conditions"] == [KUBELET_CONDITION]
    assert CONDITIONS_LABEL not in removed["metadata"]["labels"]
    assert build_conditions_patch(removed, None, NOW) == {}


def test_conditions_of_another_writer_stay_without_label() -> None:
    """Check that conditions on a node without the product's label stay, because another client wrote them."""
    node = build_node()
    node["status"]["conditions"].append({"type": DRAINED, "status": "True", "reason": "KubectlDrainCompleted"})

    assert build_conditions_patch(node, None, NOW) == {}


def test_condition_overwritten_by_another_writer_is_corrected() -> None:
    """Check that only the condition that another client overwrote is written again."""
    node, maintenance = build_node(), build_maintenance()
    patched = apply_patch(node, build_conditions_patch(node, maintenance, NOW))
    for item in patched["status"]["conditions"]:
        if item["type"] == DRAINED:
            item |= {"status": "True", "reason": "KubectlDrainCompleted", "lastTransitionTime": EARLIER_TEXT}

    (condition,) = build_conditions_patch(patched, maintenance, NOW)["status"]["conditions"]

    assert (condition["type"], condition["status"], condition["lastTransitionTime"]) == (DRAINED, "False", NOW_TEXT)


def test_label_without_conditions_is_removed() -> None:
    """Check that the label is removed even if another client has removed the conditions."""
    patch = build_conditions_patch(build_node(label="uid-first"), None, NOW)

    assert patch == {"metadata": {"resourceVersion": "7", "labels": {CONDITIONS_LABEL: None}}}


def test_condition_message_quotes_only_start_of_long_reason() -> None:
    """Check that a condition's message truncates the maintenance's reason, which may have thousands of characters."""
    maintenance = build_maintenance()
    maintenance["spec"]["reason"] = "x" * 5000

    patch = build_conditions_patch(build_node(), maintenance, NOW)

    assert all(len(item["message"]) < 300 for item in patch["status"]["conditions"])


def test_trimmed_node_has_same_patch_of_conditions() -> None:
    """Check that a trimmed node, as a tick keeps it in memory, gives the same patch as the complete node."""
    node, maintenance = build_node(label="an-earlier-uid"), build_maintenance()

    trimmed = trim_node_to_conditions(node)

    assert build_conditions_patch(trimmed, maintenance, NOW) == build_conditions_patch(node, maintenance, NOW)
    assert trimmed.keys() == {"metadata", "spec", "status"}


def test_documented_conditions_match_code() -> None:
    """Check that docs/node-conditions.md lists the conditions of each state, with status and reason."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE_TEXT.splitlines() if line[:1] == "|"]
    header, _, *states = rows[: 2 + len(LifecycleState)]

    assert [name.strip("`") for name in header[1:]] == list(CONDITION_TYPES)
    assert states == [
        [
            state.value,
            *(f"{observations[name].is_true} `{observations[name].reason}`" for name in CONDITION_TYPES),
        ]
        for state, observations in CONDITIONS_BY_STATE.items()
    ]
    assert f"`{CONDITIONS_LABEL}`" in PAGE_TEXT
