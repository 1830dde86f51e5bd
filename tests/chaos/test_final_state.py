"""The check of the final state finds everything that is left over or missing."""

from __future__ import annotations

import copy
import json
from datetime import datetime, timezone
from typing import Any

import pytest

from chaos.final_state import wrong
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.maintenance.leases import lease_of
from kube.maintenance.objects import FINALIZER, SNAPSHOT
from kube.nodes import BEFORE, EXCLUDED, LABEL, NO_SCHEDULE, UNSCHEDULABLE
from kube.paths import Object

NOW = datetime.now(timezone.utc)
TAINTS = [{"key": key, "effect": NO_SCHEDULE} for key in (MEDIK8S.drain_taint, UNSCHEDULABLE)]
LABELS = {LABEL: "m", BEFORE: "unset", EXCLUDED: "true"}


def maintenance(name: str = "m", phase: str = "Succeeded", **more: Any) -> Object:
    noted = {SNAPSHOT: json.dumps({"evictionPods": 1, "totalpods": 1, "uid": name})}
    metadata = {"name": name, "uid": name, "finalizers": [FINALIZER], "annotations": noted, **more}
    spec, status = {"nodeName": "node-1"}, {"phase": phase}
    return {"apiVersion": MEDIK8S.api_version, "metadata": metadata, "spec": spec, "status": status}


def node(labels: Object | None = None, **spec: Any) -> Object:
    return {"metadata": {"name": "node-1", "uid": "n", "labels": labels or {}}, "spec": spec}


MAINTAINED = node(LABELS, unschedulable=True, taints=TAINTS)
LEASE = lease_of("node-1", maintenance(), NOW)
POD = {"metadata": {"namespace": "a", "name": "p"}, "spec": {"nodeName": "node-1"}}
WAITING = maintenance("other", "Failed", finalizers=[], annotations={})


def without(item: Object, *path: str) -> Object:
    changed = copy.deepcopy(item)
    where = changed
    for key in path[:-1]:
        where = where[key]
    del where[path[-1]]
    return changed


@pytest.mark.parametrize(
    ("nodes", "maintenances", "leases", "pods"),
    [
        pytest.param([node()], [], [], [POD], id="free"),
        pytest.param([MAINTAINED], [maintenance()], [LEASE], [], id="maintained"),
        pytest.param([MAINTAINED], [maintenance(), WAITING], [LEASE], [], id="another waits"),
    ],
)
def test_nothing_is_wrong(
    nodes: list[Object], maintenances: list[Object], leases: list[Object], pods: list[Object]
) -> None:
    assert wrong(nodes, maintenances, leases, pods) == []


@pytest.mark.parametrize(
    ("said", "nodes", "maintenances", "leases", "pods"),
    [
        ("is cordoned, and nobody", [node(unschedulable=True)], [], [], []),
        (f"has the taint {TAINTS[0]['key']}, and nobody", [node(taints=TAINTS[:1])], [], [], []),
        (
            f"has the taint {KUBEVIRT.drain_taint}",
            [node(taints=[{**TAINTS[0], "key": KUBEVIRT.drain_taint}])],
            [],
            [],
            [],
        ),
        *(
            (f"has the label {label}, and nobody", [node({label: value})], [], [], [])
            for label, value in LABELS.items()
        ),
        ("the lease of node-1 is left", [node()], [], [LEASE], []),
        ("the lease of node-1 is left, and no such node", [], [], [LEASE], []),
        ("m is still being deleted", [node()], [maintenance(deletionTimestamp="x")], [], []),
        ("has no lease for any of m", [MAINTAINED], [maintenance()], [], []),
        ("has no lease for any of other", [MAINTAINED], [maintenance("other")], [LEASE], []),
        ("not cordoned and tainted", [without(MAINTAINED, "spec", "unschedulable")], [maintenance()], [LEASE], []),
        ("not cordoned and tainted", [without(MAINTAINED, "spec", "taints")], [maintenance()], [LEASE], []),
        ("has not the labels", [without(MAINTAINED, "metadata", "labels", LABEL)], [maintenance()], [LEASE], []),
        ("has not the labels", [without(MAINTAINED, "metadata", "labels", EXCLUDED)], [maintenance()], [LEASE], []),
        ("no finalizer or counts", [MAINTAINED], [maintenance(finalizers=[])], [LEASE], []),
        ("m on node-1 is Running", [MAINTAINED], [maintenance(phase="Running")], [LEASE], []),
        ("m on node-1 is without a phase", [MAINTAINED], [maintenance(phase="")], [LEASE], []),
        ("has a/p left", [MAINTAINED], [maintenance()], [LEASE], [POD]),
        ("other is Succeeded, and the lease", [MAINTAINED], [maintenance(), maintenance("other")], [LEASE], []),
    ],
)
def test_what_is_wrong_is_said(
    said: str, nodes: list[Object], maintenances: list[Object], leases: list[Object], pods: list[Object]
) -> None:
    (line,) = wrong(nodes, maintenances, leases, pods)

    assert said in line
