"""Tests that the invariant checker finds each violation of an invariant, and accepts valid observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.audit_requests import DeletionRequest, EvictionRequest
from chaos.invariant_checker import (
    MAINTENANCES,
    NODES,
    PODS,
    InvariantChecker,
    ObjectObservation,
    Observation,
    WatchGap,
)
from kube.maintenance.escalation import ACTIONS, DELETE, DELETE_NOW, DELETE_UNREADY
from kube.maintenance.groups import MEDIK8S
from kube.nodes import NO_SCHEDULE, UNSCHEDULABLE_TAINT

START_TIME = 1_700_000_000.0
TAINTS = [{"key": key, "effect": NO_SCHEDULE} for key in (MEDIK8S.drain_taint, UNSCHEDULABLE_TAINT)]
CORDONED_AND_TAINTED_SPEC: dict[str, Any] = {"unschedulable": True, "taints": TAINTS}


def build_node_observation(seconds: float, version: int, **spec: Any) -> ObjectObservation:
    node = {"metadata": {"name": "node-1", "uid": "n", "resourceVersion": str(version)}, "spec": spec}
    return ObjectObservation(START_TIME + seconds, NODES, node)


def build_pod_observation(
    seconds: float,
    version: int,
    uid: str = "p",
    *,
    node_name: str = "node-1",
    is_terminating: bool = False,
    is_deleted: bool = False,
    is_ready: bool = True,
    **metadata_fields: Any,
) -> ObjectObservation:
    metadata = {"namespace": "a", "name": uid, "uid": uid, "resourceVersion": str(version), **metadata_fields}
    metadata |= {"deletionTimestamp": "2023-11-14T22:13:20Z"} if is_terminating else {}
    status = {"conditions": [{"type": "Ready", "status": str(is_ready)}]}
    pod = {"metadata": metadata, "spec": {"nodeName": node_name}, "status": status}
    return ObjectObservation(START_TIME + seconds, PODS, pod, is_deleted)


def build_maintenance_observation(
    seconds: float,
    version: int,
    phase: str = "Running",
    *,
    is_terminating: bool = False,
    is_deleted: bool = False,
    step: str = "",
) -> ObjectObservation:
    times = {"creationTimestamp": "2023-11-14T22:13:20Z"} | ({"deletionTimestamp": "x"} if is_terminating else {})
    metadata = {"name": "m", "uid": "m", "resourceVersion": str(version), **times}
    drain = {"escalation": [{"after": f"{number}m", "action": action} for number, action in enumerate(ACTIONS, 1)]}
    current = next((item for item in drain["escalation"] if item["action"] == step), None)
    status = {"phase": phase, "escalation": current}
    maintenance = {"metadata": metadata, "spec": {"nodeName": "node-1", "drain": drain}, "status": status}
    return ObjectObservation(START_TIME + seconds, MAINTENANCES, maintenance, is_deleted)


def build_eviction(seconds: float, uid: str = "p", *, is_granted: bool = True) -> EvictionRequest:
    return EvictionRequest(START_TIME + seconds, f"a/{uid}", uid, is_granted)


def build_deletion(seconds: float, version: int = 2) -> DeletionRequest:
    return DeletionRequest(START_TIME + seconds, "a/p", "p", version)


def find_violations(*observations: Observation) -> list[str]:
    checker = InvariantChecker()
    for observation in observations:
        checker.record(observation)
    return [*checker.check_until(START_TIME + 1000), *checker.check_totals()]


INITIAL_OBSERVATIONS = (build_node_observation(0, 1), build_pod_observation(0, 2), build_maintenance_observation(0, 3))
DRAINING_OBSERVATIONS = (*INITIAL_OBSERVATIONS, build_node_observation(1, 4, **CORDONED_AND_TAINTED_SPEC))
EVICTED_OBSERVATIONS = (*DRAINING_OBSERVATIONS, build_eviction(2), build_pod_observation(2, 5, is_terminating=True))
COMPLETE_OBSERVATIONS = (
    *EVICTED_OBSERVATIONS,
    build_pod_observation(5, 6, is_deleted=True),
    build_maintenance_observation(5, 7, "Succeeded"),
    build_node_observation(6, 8),
)
OBSERVATIONS_WITHOUT_MAINTENANCE = (
    build_node_observation(0, 1, **CORDONED_AND_TAINTED_SPEC),
    build_pod_observation(0, 2),
    build_eviction(2),
    build_pod_observation(2, 5, is_terminating=True),
)
ESCALATED_OBSERVATIONS = (*DRAINING_OBSERVATIONS, build_maintenance_observation(2, 5, step=DELETE))
DAEMONSET_OWNER = [{"kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]

VALID_CASES: dict[str, Sequence[Observation]] = {
    "complete drain": COMPLETE_OBSERVATIONS,
    "observations grouped by watch": tuple(
        sorted(COMPLETE_OBSERVATIONS, key=lambda observation: getattr(observation, "collection", ""), reverse=True)
    ),
    "eviction rejected by budget, then granted": (
        *DRAINING_OBSERVATIONS,
        build_eviction(1.5, is_granted=False),
        build_eviction(2),
        build_pod_observation(2, 5, is_terminating=True),
    ),
    "eviction just after node was uncordoned": (
        *DRAINING_OBSERVATIONS,
        build_node_observation(3, 5),
        build_eviction(4),
        build_pod_observation(4, 6, is_terminating=True),
    ),
    "eviction just after maintenance was deleted": (
        *DRAINING_OBSERVATIONS,
        build_maintenance_observation(3, 5, is_deleted=True),
        build_eviction(4),
        build_pod_observation(4, 6, is_terminating=True),
    ),
    "second eviction soon after first": (*EVICTED_OBSERVATIONS, build_eviction(3, is_granted=False)),
    "pod bound after last pass": (
        *DRAINING_OBSERVATIONS,
        build_pod_observation(4, 5, "late"),
        build_pod_observation(3, 6, is_deleted=True),
        build_maintenance_observation(5, 7, "Succeeded"),
    ),
    "pod bound after success": (
        *EVICTED_OBSERVATIONS,
        build_pod_observation(5, 6, is_deleted=True),
        build_maintenance_observation(5, 7, "Succeeded"),
        build_pod_observation(9, 9, "late"),
    ),
    "DaemonSet pod": (
        *INITIAL_OBSERVATIONS,
        build_pod_observation(3, 5, is_deleted=True),
        build_pod_observation(0, 4, "d", ownerReferences=DAEMONSET_OWNER),
        build_maintenance_observation(5, 7, "Succeeded"),
    ),
    "pod on another node": (
        *EVICTED_OBSERVATIONS,
        build_pod_observation(5, 6, is_deleted=True),
        build_pod_observation(0, 2, "q", node_name="node-2"),
        build_maintenance_observation(5, 7, "Succeeded"),
    ),
    "maintenance existed only during watch gap": (
        *OBSERVATIONS_WITHOUT_MAINTENANCE,
        WatchGap(MAINTENANCES, 3, 3, START_TIME + 1, START_TIME + 3),
    ),
    "node changed during watch gap": (
        *INITIAL_OBSERVATIONS,
        WatchGap(NODES, 3, 6),
        build_eviction(2),
        build_pod_observation(2, 5, is_terminating=True),
        build_node_observation(3, 6, **CORDONED_AND_TAINTED_SPEC),
    ),
}
VALID_CASES |= {
    "deletion by step": (
        *ESCALATED_OBSERVATIONS,
        build_deletion(3),
        build_pod_observation(3, 6, is_terminating=True),
    ),
    "deletion of unready pod": (
        *DRAINING_OBSERVATIONS,
        build_pod_observation(1, 5, is_ready=False),
        build_maintenance_observation(2, 6, step=DELETE_UNREADY),
        build_deletion(3, 5),
        build_pod_observation(3, 7, is_terminating=True),
    ),
    "immediate deletion of terminating pod": (
        *EVICTED_OBSERVATIONS,
        build_maintenance_observation(3, 6, step=DELETE_NOW),
        build_deletion(4, 5),
        build_pod_observation(4, 7, is_terminating=True, is_deleted=True),
    ),
    "deletion just after step was removed": (
        *ESCALATED_OBSERVATIONS,
        build_maintenance_observation(3, 6),
        build_deletion(4),
        build_pod_observation(4, 7, is_terminating=True),
    ),
    "deletion by one of two steps": (
        *ESCALATED_OBSERVATIONS,
        build_maintenance_observation(3, 6, step=DELETE_NOW),
        build_deletion(3),
        build_pod_observation(3, 7, is_terminating=True),
    ),
    "deletion during watch gap": (
        *DRAINING_OBSERVATIONS,
        build_deletion(3),
        build_pod_observation(3, 6, is_terminating=True),
        WatchGap(MAINTENANCES, 3, 9),
    ),
    "deletion of pod in unknown version": (
        *DRAINING_OBSERVATIONS,
        build_deletion(3, 3),
        build_pod_observation(3, 6, is_terminating=True),
    ),
}
NO_STEP = "pod a/p was deleted although no NodeMaintenance of its node was in an escalation step"
VIOLATION_CASES: dict[str, tuple[str, Sequence[Observation]]] = {
    "never cordoned": (
        "before the node was cordoned and tainted",
        (*INITIAL_OBSERVATIONS, build_eviction(2), build_pod_observation(2, 5, is_terminating=True)),
    ),
    "cordoned but not tainted": (
        "before the node was cordoned and tainted",
        (
            *INITIAL_OBSERVATIONS,
            build_node_observation(1, 4, unschedulable=True),
            build_eviction(2),
            build_pod_observation(2, 5, is_terminating=True),
        ),
    ),
    "cordoned and tainted after the eviction": (
        "before the node was cordoned and tainted",
        (
            *INITIAL_OBSERVATIONS,
            build_eviction(2),
            build_pod_observation(2, 4, is_terminating=True),
            build_node_observation(1, 5, **CORDONED_AND_TAINTED_SPEC),
        ),
    ),
    "uncordoned long before eviction": (
        "s after node node-1 was uncordoned",
        (
            *DRAINING_OBSERVATIONS,
            build_node_observation(2, 5),
            build_eviction(4.1),
            build_pod_observation(4, 6, is_terminating=True),
        ),
    ),
    "maintenance deletion requested long before eviction": (
        "s after its deletion",
        (
            *DRAINING_OBSERVATIONS,
            build_maintenance_observation(2, 5, is_terminating=True),
            build_eviction(4.1),
            build_pod_observation(4, 6, is_terminating=True),
        ),
    ),
    "maintenance deleted long before eviction": (
        "s after its deletion",
        (
            *DRAINING_OBSERVATIONS,
            build_maintenance_observation(2, 5, is_deleted=True),
            build_eviction(4.1),
            build_pod_observation(4, 6, is_terminating=True),
        ),
    ),
    "no maintenance": ("without a NodeMaintenance", OBSERVATIONS_WITHOUT_MAINTENANCE),
    "no maintenance long after watch gap": (
        "without a NodeMaintenance",
        (*OBSERVATIONS_WITHOUT_MAINTENANCE, WatchGap(MAINTENANCES, 0, 0, START_TIME - 2, START_TIME - 1)),
    ),
    "evicted again long after pod was terminating": (
        "evicted again 2.1 s after",
        (*EVICTED_OBSERVATIONS, build_eviction(4.1)),
    ),
    "evicted again and rejected": (
        "evicted again 2.1 s after",
        (*EVICTED_OBSERVATIONS, build_eviction(4.1, is_granted=False)),
    ),
    "pod deleted after success": (
        "Succeeded, but pod a/p is on node node-1",
        (
            *EVICTED_OBSERVATIONS,
            build_maintenance_observation(5, 6, "Succeeded"),
            build_pod_observation(5, 7, is_deleted=True),
        ),
    ),
    "pod never deleted": (
        "Succeeded, but pod a/p is on node node-1",
        (*DRAINING_OBSERVATIONS, build_maintenance_observation(5, 6, "Succeeded")),
    ),
    "succeeded again before pod was deleted": (
        "Succeeded, but pod a/q is on node node-1",
        (
            *(
                *EVICTED_OBSERVATIONS,
                build_pod_observation(5, 6, is_deleted=True),
                build_maintenance_observation(5, 7, "Succeeded"),
                build_pod_observation(6, 8, "q"),
            ),
            *(build_maintenance_observation(7, 9, "Running"), build_maintenance_observation(9, 10, "Succeeded")),
        ),
    ),
    "deletion without step": (
        NO_STEP,
        (*DRAINING_OBSERVATIONS, build_deletion(2), build_pod_observation(2, 5, is_terminating=True)),
    ),
    "deletion before step was recorded": (
        NO_STEP,
        (
            *DRAINING_OBSERVATIONS,
            build_deletion(2),
            build_pod_observation(2, 5, is_terminating=True),
            build_maintenance_observation(2, 6, step=DELETE),
        ),
    ),
    "deletion long after step was removed": (
        NO_STEP,
        (
            *ESCALATED_OBSERVATIONS,
            build_maintenance_observation(3, 6),
            build_deletion(5.1),
            build_pod_observation(5, 7, is_terminating=True),
        ),
    ),
    "deletion long after maintenance was deleted": (
        NO_STEP,
        (
            *ESCALATED_OBSERVATIONS,
            build_maintenance_observation(3, 6, step=DELETE, is_deleted=True),
            build_deletion(5.1),
            build_pod_observation(5, 7, is_terminating=True),
        ),
    ),
    "deletion of pod that had recovered": (
        "pod a/p was ready, but step DeleteUnready deleted it",
        (
            *DRAINING_OBSERVATIONS,
            build_maintenance_observation(2, 5, step=DELETE_UNREADY),
            build_deletion(3),
            build_pod_observation(3, 6, is_terminating=True),
        ),
    ),
    "second deletion": (
        "pod a/p was terminating, but step Delete deleted it again",
        (
            *EVICTED_OBSERVATIONS,
            build_maintenance_observation(3, 6, step=DELETE),
            build_deletion(4, 5),
            build_pod_observation(4, 7, is_terminating=True, is_deleted=True),
        ),
    ),
    "deletion long after node was uncordoned": (
        "was deleted 2.1 s after node node-1 was uncordoned",
        (
            *ESCALATED_OBSERVATIONS,
            build_node_observation(3, 6),
            build_deletion(5.1),
            build_pod_observation(5, 7, is_terminating=True),
        ),
    ),
    "granted twice": ("evictions of 1 of 1 pods were granted twice", (*EVICTED_OBSERVATIONS, build_eviction(2.5))),
}


@pytest.mark.parametrize("observations", VALID_CASES.values(), ids=VALID_CASES)
def test_valid_observations_have_no_violations(observations: Sequence[Observation]) -> None:
    assert find_violations(*observations) == []


@pytest.mark.parametrize(("expected", "observations"), VIOLATION_CASES.values(), ids=VIOLATION_CASES)
def test_violation_is_found(expected: str, observations: Sequence[Observation]) -> None:
    (violation,) = find_violations(*observations)

    assert expected in violation


def test_one_percent_of_evictions_may_be_granted_twice() -> None:
    """Check that one percent of evictions may be granted twice, because a lost response makes the product retry."""
    pod_uids = [f"p-{number}" for number in range(100)]
    granted_evictions = [
        observation
        for uid in pod_uids
        for observation in (
            build_pod_observation(0, 2, uid),
            build_eviction(2, uid),
            build_pod_observation(2, 5, uid, is_terminating=True),
        )
    ]

    assert find_violations(*DRAINING_OBSERVATIONS, *granted_evictions, build_eviction(3, "p-0")) == []
    assert (
        len(
            find_violations(
                *DRAINING_OBSERVATIONS, *granted_evictions, build_eviction(3, "p-0"), build_eviction(3, "p-1")
            )
        )
        == 1
    )


def test_recent_observations_are_not_checked_yet() -> None:
    """Check that recent observations are not checked yet, because another watch may deliver related ones later."""
    checker = InvariantChecker()
    for observation in (*INITIAL_OBSERVATIONS, build_eviction(2), build_pod_observation(2, 5, is_terminating=True)):
        checker.record(observation)

    assert checker.check_until(START_TIME + 2) == []
    checker.record(build_node_observation(1, 4, **CORDONED_AND_TAINTED_SPEC))
    assert checker.check_until(START_TIME + 3) == []
    assert checker.tally.checked["evictions"] == 1
