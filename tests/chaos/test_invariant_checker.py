"""The invariant checker finds each violation in the observations, and reports none in correct ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.invariant_checker import InvariantChecker
from chaos.observations import MAINTENANCES, NODES, PODS, EvictionRequest, ObjectObservation, Observation, WatchGap
from kube.maintenance.groups import MEDIK8S
from kube.nodes import NO_SCHEDULE, UNSCHEDULABLE_TAINT

START_TIME = 1_700_000_000.0
TAINTS = [{"key": key, "effect": NO_SCHEDULE} for key in (MEDIK8S.drain_taint, UNSCHEDULABLE_TAINT)]
CORDONED_AND_TAINTED_SPEC: dict[str, Any] = {"unschedulable": True, "taints": TAINTS}


def build_node_sighting(at: float, version: int, **spec: Any) -> ObjectObservation:
    item = {"metadata": {"name": "node-1", "uid": "n", "resourceVersion": str(version)}, "spec": spec}
    return ObjectObservation(START_TIME + at, NODES, item)


def build_pod_sighting(
    at: float,
    version: int,
    uid: str = "p",
    *,
    node_name: str = "node-1",
    is_terminating: bool = False,
    is_deleted: bool = False,
    **more: Any,
) -> ObjectObservation:
    metadata = {"namespace": "a", "name": uid, "uid": uid, "resourceVersion": str(version), **more}
    metadata |= {"deletionTimestamp": "2023-11-14T22:13:20Z"} if is_terminating else {}
    return ObjectObservation(START_TIME + at, PODS, {"metadata": metadata, "spec": {"nodeName": node_name}}, is_deleted)


def build_maintenance_sighting(
    at: float, version: int, phase: str = "Running", *, is_terminating: bool = False, is_deleted: bool = False
) -> ObjectObservation:
    times = {"creationTimestamp": "2023-11-14T22:13:20Z"} | ({"deletionTimestamp": "x"} if is_terminating else {})
    metadata = {"name": "m", "uid": "m", "resourceVersion": str(version), **times}
    item = {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": phase}}
    return ObjectObservation(START_TIME + at, MAINTENANCES, item, is_deleted)


def build_eviction(at: float, uid: str = "p", *, is_granted: bool = True) -> EvictionRequest:
    return EvictionRequest(START_TIME + at, f"a/{uid}", uid, is_granted)


def find_violations(*observations: Observation) -> list[str]:
    checker = InvariantChecker()
    for observation in observations:
        checker.record(observation)
    return [*checker.check_until(START_TIME + 1000), *checker.check_totals()]


INITIAL_OBSERVATIONS = (build_node_sighting(0, 1), build_pod_sighting(0, 2), build_maintenance_sighting(0, 3))
DRAINING_OBSERVATIONS = (*INITIAL_OBSERVATIONS, build_node_sighting(1, 4, **CORDONED_AND_TAINTED_SPEC))
EVICTED_OBSERVATIONS = (*DRAINING_OBSERVATIONS, build_eviction(2), build_pod_sighting(2, 5, is_terminating=True))
COMPLETE_OBSERVATIONS = (
    *EVICTED_OBSERVATIONS,
    build_pod_sighting(5, 6, is_deleted=True),
    build_maintenance_sighting(5, 7, "Succeeded"),
    build_node_sighting(6, 8),
)
OBSERVATIONS_WITHOUT_MAINTENANCE = (
    build_node_sighting(0, 1, **CORDONED_AND_TAINTED_SPEC),
    build_pod_sighting(0, 2),
    build_eviction(2),
    build_pod_sighting(2, 5, is_terminating=True),
)
DAEMONSET_OWNER = [{"kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]

VALID_CASES: dict[str, Sequence[Observation]] = {
    "a drain": COMPLETE_OBSERVATIONS,
    "one watch after another": tuple(
        sorted(COMPLETE_OBSERVATIONS, key=lambda observation: getattr(observation, "collection", ""), reverse=True)
    ),
    "a refusal by a budget, then a grant": (
        *DRAINING_OBSERVATIONS,
        build_eviction(1.5, is_granted=False),
        build_eviction(2),
        build_pod_sighting(2, 5, is_terminating=True),
    ),
    "an eviction just after the node was uncordoned": (
        *DRAINING_OBSERVATIONS,
        build_node_sighting(3, 5),
        build_eviction(4),
        build_pod_sighting(4, 6, is_terminating=True),
    ),
    "an eviction just after the object was deleted": (
        *DRAINING_OBSERVATIONS,
        build_maintenance_sighting(3, 5, is_deleted=True),
        build_eviction(4),
        build_pod_sighting(4, 6, is_terminating=True),
    ),
    "a second eviction at once": (*EVICTED_OBSERVATIONS, build_eviction(3, is_granted=False)),
    "a pod that was bound after the last pass": (
        *DRAINING_OBSERVATIONS,
        build_pod_sighting(4, 5, "late"),
        build_pod_sighting(3, 6, is_deleted=True),
        build_maintenance_sighting(5, 7, "Succeeded"),
    ),
    "a pod that was bound later": (
        *EVICTED_OBSERVATIONS,
        build_pod_sighting(5, 6, is_deleted=True),
        build_maintenance_sighting(5, 7, "Succeeded"),
        build_pod_sighting(9, 9, "late"),
    ),
    "a DaemonSet's pod": (
        *INITIAL_OBSERVATIONS,
        build_pod_sighting(3, 5, is_deleted=True),
        build_pod_sighting(0, 4, "d", ownerReferences=DAEMONSET_OWNER),
        build_maintenance_sighting(5, 7, "Succeeded"),
    ),
    "a pod on another node": (
        *EVICTED_OBSERVATIONS,
        build_pod_sighting(5, 6, is_deleted=True),
        build_pod_sighting(0, 2, "q", node_name="node-2"),
        build_maintenance_sighting(5, 7, "Succeeded"),
    ),
    "an object that existed only in a watch gap": (
        *OBSERVATIONS_WITHOUT_MAINTENANCE,
        WatchGap(MAINTENANCES, 3, 3, START_TIME + 1, START_TIME + 3),
    ),
    "a node change in a watch gap": (
        *INITIAL_OBSERVATIONS,
        WatchGap(NODES, 3, 6),
        build_eviction(2),
        build_pod_sighting(2, 5, is_terminating=True),
        build_node_sighting(3, 6, **CORDONED_AND_TAINTED_SPEC),
    ),
}
VIOLATION_CASES: dict[str, tuple[str, Sequence[Observation]]] = {
    "never cordoned": (
        "before the node was cordoned and tainted",
        (*INITIAL_OBSERVATIONS, build_eviction(2), build_pod_sighting(2, 5, is_terminating=True)),
    ),
    "cordoned, not tainted": (
        "before the node was cordoned and tainted",
        (
            *INITIAL_OBSERVATIONS,
            build_node_sighting(1, 4, unschedulable=True),
            build_eviction(2),
            build_pod_sighting(2, 5, is_terminating=True),
        ),
    ),
    "cordoned and tainted after the eviction": (
        "before the node was cordoned and tainted",
        (
            *INITIAL_OBSERVATIONS,
            build_eviction(2),
            build_pod_sighting(2, 4, is_terminating=True),
            build_node_sighting(1, 5, **CORDONED_AND_TAINTED_SPEC),
        ),
    ),
    "uncordoned long before": (
        "s after node node-1 was uncordoned",
        (
            *DRAINING_OBSERVATIONS,
            build_node_sighting(2, 5),
            build_eviction(4.1),
            build_pod_sighting(4, 6, is_terminating=True),
        ),
    ),
    "the object's deletion was long before": (
        "s after its deletion",
        (
            *DRAINING_OBSERVATIONS,
            build_maintenance_sighting(2, 5, is_terminating=True),
            build_eviction(4.1),
            build_pod_sighting(4, 6, is_terminating=True),
        ),
    ),
    "the object no longer existed long before": (
        "s after its deletion",
        (
            *DRAINING_OBSERVATIONS,
            build_maintenance_sighting(2, 5, is_deleted=True),
            build_eviction(4.1),
            build_pod_sighting(4, 6, is_terminating=True),
        ),
    ),
    "no object at all": ("without a NodeMaintenance", OBSERVATIONS_WITHOUT_MAINTENANCE),
    "no object long after a watch gap": (
        "without a NodeMaintenance",
        (*OBSERVATIONS_WITHOUT_MAINTENANCE, WatchGap(MAINTENANCES, 0, 0, START_TIME - 2, START_TIME - 1)),
    ),
    "evicted again long after it was terminating": (
        "evicted again 2.1 s after",
        (*EVICTED_OBSERVATIONS, build_eviction(4.1)),
    ),
    "evicted again, and refused": (
        "evicted again 2.1 s after",
        (*EVICTED_OBSERVATIONS, build_eviction(4.1, is_granted=False)),
    ),
    "a pod that leaves later": (
        "Succeeded, but pod a/p is on node node-1",
        (
            *EVICTED_OBSERVATIONS,
            build_maintenance_sighting(5, 6, "Succeeded"),
            build_pod_sighting(5, 7, is_deleted=True),
        ),
    ),
    "a pod that never leaves": (
        "Succeeded, but pod a/p is on node node-1",
        (*DRAINING_OBSERVATIONS, build_maintenance_sighting(5, 6, "Succeeded")),
    ),
    "succeeded again too early": (
        "Succeeded, but pod a/q is on node node-1",
        (
            *(
                *EVICTED_OBSERVATIONS,
                build_pod_sighting(5, 6, is_deleted=True),
                build_maintenance_sighting(5, 7, "Succeeded"),
                build_pod_sighting(6, 8, "q"),
            ),
            *(build_maintenance_sighting(7, 9, "Running"), build_maintenance_sighting(9, 10, "Succeeded")),
        ),
    ),
    "granted twice": ("evictions of 1 of 1 pods were granted twice", (*EVICTED_OBSERVATIONS, build_eviction(2.5))),
}


@pytest.mark.parametrize("observations", VALID_CASES.values(), ids=VALID_CASES)
def test_valid_observations_have_no_violation(observations: Sequence[Observation]) -> None:
    assert find_violations(*observations) == []


@pytest.mark.parametrize(("expected", "observations"), VIOLATION_CASES.values(), ids=VIOLATION_CASES)
def test_a_violation_is_found(expected: str, observations: Sequence[Observation]) -> None:
    (violation,) = find_violations(*observations)

    assert expected in violation


def test_one_percent_of_evictions_may_be_granted_twice() -> None:
    """Check that one in a hundred evictions may be granted twice, since the first response may have been lost."""
    pods = [f"p-{number}" for number in range(100)]
    grants = [
        observation
        for uid in pods
        for observation in (
            build_pod_sighting(0, 2, uid),
            build_eviction(2, uid),
            build_pod_sighting(2, 5, uid, is_terminating=True),
        )
    ]

    assert find_violations(*DRAINING_OBSERVATIONS, *grants, build_eviction(3, "p-0")) == []
    assert (
        len(find_violations(*DRAINING_OBSERVATIONS, *grants, build_eviction(3, "p-0"), build_eviction(3, "p-1"))) == 1
    )


def test_recent_observations_are_not_checked_yet() -> None:
    """Check that recent observations are not checked yet, because related ones may arrive from another watch."""
    watcher = InvariantChecker()
    for observation in (*INITIAL_OBSERVATIONS, build_eviction(2), build_pod_sighting(2, 5, is_terminating=True)):
        watcher.record(observation)

    assert watcher.check_until(START_TIME + 2) == []
    watcher.record(build_node_sighting(1, 4, **CORDONED_AND_TAINTED_SPEC))
    assert watcher.check_until(START_TIME + 3) == []
    assert watcher.tally.checked["evictions"] == 1
