"""Tests that the check of the final state finds each leftover, and each missing object or field."""

from __future__ import annotations

import copy
import json
from datetime import datetime, timezone
from typing import Any

import pytest

from chaos.final_state import list_problems
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.maintenance.leases import build_lease
from kube.maintenance.objects import FINALIZER, INITIAL_COUNTS_ANNOTATION
from kube.nodes import EXCLUDE_LABEL, EXCLUDED_BEFORE_LABEL, MAINTENANCE_LABEL, NO_SCHEDULE, UNSCHEDULABLE_TAINT
from kube.paths import Object

NOW = datetime.now(timezone.utc)
TAINTS = [{"key": key, "effect": NO_SCHEDULE} for key in (MEDIK8S.drain_taint, UNSCHEDULABLE_TAINT)]
LABELS = {MAINTENANCE_LABEL: "m", EXCLUDED_BEFORE_LABEL: "unset", EXCLUDE_LABEL: "true"}


def build_maintenance(name: str = "m", phase: str = "Succeeded", **metadata_fields: Any) -> Object:
    annotations = {INITIAL_COUNTS_ANNOTATION: json.dumps({"evictionPods": 1, "totalpods": 1, "uid": name})}
    metadata = {"name": name, "uid": name, "finalizers": [FINALIZER], "annotations": annotations, **metadata_fields}
    spec, status = {"nodeName": "node-1"}, {"phase": phase}
    return {"apiVersion": MEDIK8S.api_version, "metadata": metadata, "spec": spec, "status": status}


def build_node(labels: Object | None = None, **spec: Any) -> Object:
    return {"metadata": {"name": "node-1", "uid": "n", "labels": labels or {}}, "spec": spec}


MAINTAINED_NODE = build_node(LABELS, unschedulable=True, taints=TAINTS)
LEASE = build_lease("node-1", build_maintenance(), NOW)
POD = {"metadata": {"namespace": "a", "name": "p"}, "spec": {"nodeName": "node-1"}}
WAITING_MAINTENANCE = build_maintenance("other", "Failed", finalizers=[], annotations={})


def copy_without(original: Object, *path: str) -> Object:
    modified_copy = copy.deepcopy(original)
    parent = modified_copy
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return modified_copy


@pytest.mark.parametrize(
    ("nodes", "maintenances", "leases", "pods"),
    [
        pytest.param([build_node()], [], [], [POD], id="node without maintenance"),
        pytest.param([MAINTAINED_NODE], [build_maintenance()], [LEASE], [], id="node in maintenance"),
        pytest.param(
            [MAINTAINED_NODE], [build_maintenance(), WAITING_MAINTENANCE], [LEASE], [], id="second maintenance waits"
        ),
    ],
)
def test_correct_final_state_has_no_problems(
    nodes: list[Object], maintenances: list[Object], leases: list[Object], pods: list[Object]
) -> None:
    assert list_problems(nodes, maintenances, leases, pods) == []


@pytest.mark.parametrize(
    ("expected", "nodes", "maintenances", "leases", "pods"),
    [
        ("is cordoned without a NodeMaintenance", [build_node(unschedulable=True)], [], [], []),
        (f"has the taint {TAINTS[0]['key']} without", [build_node(taints=TAINTS[:1])], [], [], []),
        (
            f"has the taint {KUBEVIRT.drain_taint}",
            [build_node(taints=[{**TAINTS[0], "key": KUBEVIRT.drain_taint}])],
            [],
            [],
            [],
        ),
        *(
            (f"has the label {label} without", [build_node({label: value})], [], [], [])
            for label, value in LABELS.items()
        ),
        ("node node-1 has a Lease without", [build_node()], [], [LEASE], []),
        ("node node-1 does not exist, but still has a Lease", [], [], [LEASE], []),
        ("m is still being deleted", [build_node()], [build_maintenance(deletionTimestamp="x")], [], []),
        ("has no Lease for any of m", [MAINTAINED_NODE], [build_maintenance()], [], []),
        ("has no Lease for any of other", [MAINTAINED_NODE], [build_maintenance("other")], [LEASE], []),
        (
            "not cordoned and tainted",
            [copy_without(MAINTAINED_NODE, "spec", "unschedulable")],
            [build_maintenance()],
            [LEASE],
            [],
        ),
        (
            "not cordoned and tainted",
            [copy_without(MAINTAINED_NODE, "spec", "taints")],
            [build_maintenance()],
            [LEASE],
            [],
        ),
        (
            "lacks the labels",
            [copy_without(MAINTAINED_NODE, "metadata", "labels", MAINTENANCE_LABEL)],
            [build_maintenance()],
            [LEASE],
            [],
        ),
        (
            "lacks the labels",
            [copy_without(MAINTAINED_NODE, "metadata", "labels", EXCLUDE_LABEL)],
            [build_maintenance()],
            [LEASE],
            [],
        ),
        ("no finalizer or counts", [MAINTAINED_NODE], [build_maintenance(finalizers=[])], [LEASE], []),
        ("m on node node-1 is Running", [MAINTAINED_NODE], [build_maintenance(phase="Running")], [LEASE], []),
        ("m on node node-1 is without a phase", [MAINTAINED_NODE], [build_maintenance(phase="")], [LEASE], []),
        ("still has pods under NodeMaintenance m: a/p", [MAINTAINED_NODE], [build_maintenance()], [LEASE], [POD]),
        (
            "other is Succeeded, but m holds the Lease",
            [MAINTAINED_NODE],
            [build_maintenance(), build_maintenance("other")],
            [LEASE],
            [],
        ),
    ],
)
def test_problem_in_final_state_is_listed(
    expected: str, nodes: list[Object], maintenances: list[Object], leases: list[Object], pods: list[Object]
) -> None:
    (problem,) = list_problems(nodes, maintenances, leases, pods)

    assert expected in problem
