"""The invariant checker finds each violation in the observations, and reports none in correct ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.invariant_checker import Watcher
from chaos.observations import MAINTENANCES, NODES, PODS, Blind, Eviction, Observation, Sighting
from kube.maintenance.groups import MEDIK8S
from kube.nodes import NO_SCHEDULE, UNSCHEDULABLE

BEGAN = 1_700_000_000.0
TAINTS = [{"key": key, "effect": NO_SCHEDULE} for key in (MEDIK8S.drain_taint, UNSCHEDULABLE)]
CLOSED: dict[str, Any] = {"unschedulable": True, "taints": TAINTS}


def node(at: float, version: int, **spec: Any) -> Sighting:
    item = {"metadata": {"name": "node-1", "uid": "n", "resourceVersion": str(version)}, "spec": spec}
    return Sighting(BEGAN + at, NODES, item)


def pod(
    at: float,
    version: int,
    uid: str = "p",
    *,
    on: str = "node-1",
    ending: bool = False,
    gone: bool = False,
    **more: Any,
) -> Sighting:
    metadata = {"namespace": "a", "name": uid, "uid": uid, "resourceVersion": str(version), **more}
    metadata |= {"deletionTimestamp": "2023-11-14T22:13:20Z"} if ending else {}
    return Sighting(BEGAN + at, PODS, {"metadata": metadata, "spec": {"nodeName": on}}, gone)


def maintenance(
    at: float, version: int, phase: str = "Running", *, ending: bool = False, gone: bool = False
) -> Sighting:
    times = {"creationTimestamp": "2023-11-14T22:13:20Z"} | ({"deletionTimestamp": "x"} if ending else {})
    metadata = {"name": "m", "uid": "m", "resourceVersion": str(version), **times}
    item = {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": phase}}
    return Sighting(BEGAN + at, MAINTENANCES, item, gone)


def eviction(at: float, uid: str = "p", *, granted: bool = True) -> Eviction:
    return Eviction(BEGAN + at, f"a/{uid}", uid, granted)


def judged(*seen: Observation) -> list[str]:
    watcher = Watcher()
    for one in seen:
        watcher.take(one)
    return [*watcher.settle(BEGAN + 1000), *watcher.end()]


BEGINNING = (node(0, 1), pod(0, 2), maintenance(0, 3))
DRAINING = (*BEGINNING, node(1, 4, **CLOSED))
EVICTED = (*DRAINING, eviction(2), pod(2, 5, ending=True))
FINISHED = (*EVICTED, pod(5, 6, gone=True), maintenance(5, 7, "Succeeded"), node(6, 8))
WITHOUT = (node(0, 1, **CLOSED), pod(0, 2), eviction(2), pod(2, 5, ending=True))
DAEMON = [{"kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]

GOOD: dict[str, Sequence[Observation]] = {
    "a drain": FINISHED,
    "one watch after another": tuple(sorted(FINISHED, key=lambda seen: getattr(seen, "room", ""), reverse=True)),
    "a refusal by a budget, then a grant": (
        *DRAINING,
        eviction(1.5, granted=False),
        eviction(2),
        pod(2, 5, ending=True),
    ),
    "an eviction just after the node was uncordoned": (*DRAINING, node(3, 5), eviction(4), pod(4, 6, ending=True)),
    "an eviction just after the object went": (
        *DRAINING,
        maintenance(3, 5, gone=True),
        eviction(4),
        pod(4, 6, ending=True),
    ),
    "asked again at once": (*EVICTED, eviction(3, granted=False)),
    "a pod that was bound after the drain's look": (
        *DRAINING,
        pod(4, 5, "late"),
        pod(3, 6, gone=True),
        maintenance(5, 7, "Succeeded"),
    ),
    "a pod that was bound later": (*EVICTED, pod(5, 6, gone=True), maintenance(5, 7, "Succeeded"), pod(9, 9, "late")),
    "a DaemonSet's pod": (
        *BEGINNING,
        pod(3, 5, gone=True),
        pod(0, 4, "d", ownerReferences=DAEMON),
        maintenance(5, 7, "Succeeded"),
    ),
    "a pod elsewhere": (*EVICTED, pod(5, 6, gone=True), pod(0, 2, "q", on="node-2"), maintenance(5, 7, "Succeeded")),
    "an object that came and went unseen": (*WITHOUT, Blind(MAINTENANCES, 3, 3, BEGAN + 1, BEGAN + 3)),
    "what no watch saw": (*BEGINNING, Blind(NODES, 3, 6), eviction(2), pod(2, 5, ending=True), node(3, 6, **CLOSED)),
}
BAD: dict[str, tuple[str, Sequence[Observation]]] = {
    "never closed": ("before it was cordoned and tainted", (*BEGINNING, eviction(2), pod(2, 5, ending=True))),
    "cordoned, not tainted": (
        "before it was cordoned and tainted",
        (*BEGINNING, node(1, 4, unschedulable=True), eviction(2), pod(2, 5, ending=True)),
    ),
    "closed after the eviction": (
        "before it was cordoned and tainted",
        (*BEGINNING, eviction(2), pod(2, 4, ending=True), node(1, 5, **CLOSED)),
    ),
    "opened long before": ("s after node-1 was opened", (*DRAINING, node(2, 5), eviction(4.1), pod(4, 6, ending=True))),
    "the object's deletion was long before": (
        "after its maintenance was gone",
        (*DRAINING, maintenance(2, 5, ending=True), eviction(4.1), pod(4, 6, ending=True)),
    ),
    "the object was gone long before": (
        "after its maintenance was gone",
        (*DRAINING, maintenance(2, 5, gone=True), eviction(4.1), pod(4, 6, ending=True)),
    ),
    "no object at all": ("or without one", WITHOUT),
    "no object long after a watch was broken": (
        "or without one",
        (*WITHOUT, Blind(MAINTENANCES, 0, 0, BEGAN - 2, BEGAN - 1)),
    ),
    "again long after it was terminating": ("evicted again 2.1 s after", (*EVICTED, eviction(4.1))),
    "again, and refused": ("evicted again 2.1 s after", (*EVICTED, eviction(4.1, granted=False))),
    "a pod left": ("Succeeded with a/p left", (*EVICTED, maintenance(5, 6, "Succeeded"), pod(5, 7, gone=True))),
    "a pod left for ever": ("Succeeded with a/p left", (*DRAINING, maintenance(5, 6, "Succeeded"))),
    "succeeded again too early": (
        "Succeeded with a/q left",
        (
            *(*EVICTED, pod(5, 6, gone=True), maintenance(5, 7, "Succeeded"), pod(6, 8, "q")),
            *(maintenance(7, 9, "Running"), maintenance(9, 10, "Succeeded")),
        ),
    ),
    "granted twice": ("1 of 1 evicted pods were granted twice", (*EVICTED, eviction(2.5))),
}  # fmt: skip


@pytest.mark.parametrize("seen", GOOD.values(), ids=GOOD)
def test_what_is_as_it_should_be_is_no_violation(seen: Sequence[Observation]) -> None:
    assert judged(*seen) == []


@pytest.mark.parametrize(("said", "seen"), BAD.values(), ids=BAD)
def test_a_violation_is_found(said: str, seen: Sequence[Observation]) -> None:
    (violation,) = judged(*seen)

    assert said in violation


def test_one_in_a_hundred_may_be_granted_twice() -> None:
    """Check that one in a hundred evictions may be granted twice, since the first response may have been lost."""
    pods = [f"p-{number}" for number in range(100)]
    granted = [one for uid in pods for one in (pod(0, 2, uid), eviction(2, uid), pod(2, 5, uid, ending=True))]

    assert judged(*DRAINING, *granted, eviction(3, "p-0")) == []
    assert len(judged(*DRAINING, *granted, eviction(3, "p-0"), eviction(3, "p-1"))) == 1


def test_what_happened_a_moment_ago_is_not_judged_yet() -> None:
    """Check that recent observations are not checked yet, because related ones may arrive from another watch."""
    watcher = Watcher()
    for one in (*BEGINNING, eviction(2), pod(2, 5, ending=True)):
        watcher.take(one)

    assert watcher.settle(BEGAN + 2) == []
    watcher.take(node(1, 4, **CLOSED))
    assert watcher.settle(BEGAN + 3) == []
    assert watcher.tally.judged["evictions"] == 1
