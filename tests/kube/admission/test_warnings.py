"""Tests of the admission warnings about a drain, on plain dicts."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from kube.admission.warnings import sole_control_plane, warnings
from kube.budgets import never_admits
from kube.paths import Object
from tests.kube.samples import budget, maintenance, pod

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
DB = {"app": "db"}
TOLERANT: Object = {"tolerations": [{"operator": "Exists"}]}
LOCAL: Object = {"volumes": [{"emptyDir": {}}]}


def owned(name: str = "web", **more: object) -> Object:
    return {**pod(name, owner="ReplicaSet", labels=DB), **more}


def said(*pods: Object, budgets: tuple[Object, ...] = (), **drain: object) -> list[str]:
    wanted = maintenance()
    return warnings({**wanted, "spec": {**wanted["spec"], "drain": drain}}, pods, budgets, NOW)


def counted(name: str, *, allowed: int = 0, expected: int = 3, needed: int = 3) -> Object:
    found = budget(name, allowed=allowed, needed=needed)
    return {**found, "status": {**found["status"], "expectedPods": expected}}


def test_what_nobody_misses_is_not_warned_of() -> None:
    quiet = (owned(), pod("agent", owner="DaemonSet"), pod("static", annotations={"kubernetes.io/config.mirror": "x"}))

    assert said(*quiet, pod("done", phase="Succeeded"), pod("going", deletionTimestamp="2026-01-01T00:00:00Z")) == []


@pytest.mark.parametrize(
    ("pods", "line"),
    [
        ([pod("a")], "1 pod that no controller makes again will be gone for good: ns/a"),
        (
            [pod(name) for name in "edcba"],
            "5 pods that no controller makes again will be gone for good: ns/a, ns/b, ns/c and 2 more",
        ),
        ([owned(spec=LOCAL)], "emptyDir data of 1 pod will be lost: ns/web"),
        (
            [owned(spec=TOLERANT)],
            "1 pod may come back here after eviction, tolerating every taint; narrow the tolerations: ns/web",
        ),
    ],
)
def test_what_is_lost_or_comes_back_is_named(pods: list[Object], line: str) -> None:
    assert said(*pods) == [line]


def test_a_pod_that_a_flag_keeps_is_not_lost() -> None:
    assert said(pod("a"), owned(spec=LOCAL), force=False, deleteEmptyDirData=False) == []


def test_a_bare_pod_that_tolerates_everything_does_not_come_back() -> None:
    assert said({**pod("a"), "spec": TOLERANT}) == ["1 pod that no controller makes again will be gone for good: ns/a"]


def test_a_budget_that_lets_none_go_now_is_told_from_one_that_never_does() -> None:
    now = said(owned(), owned("web-2"), budgets=(counted("b", expected=4),))
    never = said(owned(), budgets=(counted("b"),))
    closed = counted("b")
    none = said(owned(), budgets=({**closed, "spec": {**closed["spec"], "maxUnavailable": 0}},))

    assert now == [
        "budget ns/b needs 3 healthy pods and has 3, so it lets none go now; it keeps 2 pods waiting: ns/web, ns/web-2"
    ]
    assert never == [
        "budget ns/b asks for all of its pods and never lets one go, add replicas or change it; "
        "it keeps 1 pod here: ns/web"
    ]
    assert none == [never[0].replace("add replicas or change it", "change it, no replica helps")]


def test_a_budget_that_lets_one_go_is_no_reason() -> None:
    assert said(owned(), owned("web-2"), budgets=(counted("b", allowed=1, expected=4),)) == []


def test_no_budget_is_asked_where_pods_are_deleted() -> None:
    assert said(owned(), budgets=(counted("b"),), disableEviction=True) == []


def test_pods_under_two_budgets_are_named() -> None:
    assert said(owned(), budgets=(counted("a", allowed=1), counted("b", allowed=1))) == [
        "1 pod under two disruption budgets cannot be evicted, delete or narrow one of them: ns/web"
    ]


@pytest.mark.parametrize(
    ("expected", "needed", "never"), [(3, 3, True), (3, 4, True), (4, 3, False), (0, 0, False), (0, 1, False)]
)
def test_a_budget_over_all_of_its_pods_never_lets_one_go(expected: int, needed: int, never: bool) -> None:
    """Require all pods exactly if `desiredHealthy` is at least `expectedPods` and there are pods.

    This covers both `maxUnavailable: 0` and a `minAvailable` of all replicas.
    """
    assert never_admits(counted("b", expected=expected, needed=needed)) is never


def test_a_sole_control_plane_node_is_named() -> None:
    assert sole_control_plane("cp-1").startswith("node cp-1 is the only control-plane node: while it is down")
