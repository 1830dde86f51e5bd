"""Tests of which pods the disruption budgets admit, on plain dicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given

from kube.budgets import (
    BUDGETS,
    TARGET,
    Blocked,
    admitted,
    allows_none,
    budget_key,
    budget_paths,
    covers,
    goes_beside,
    plan,
    refused_by,
)
from kube.paths import Object
from kube.pods import DrainOptions, Pod, is_ready, is_terminating, key, sort
from tests.kube import samples
from tests.kube.samples import budget, pod

DB = {"app": "db"}
LONG_AGO = "2026-01-01T00:00:00Z"


def db(name: str, *, ready: bool = True, phase: str = "Running") -> Object:
    return pod(name, labels=DB, ready=ready, phase=phase)


def names(pods: Iterable[Pod]) -> list[str]:
    return [item["metadata"]["name"] for item in pods]


def test_a_pod_without_a_budget_is_free() -> None:
    """NMO-6: a pod may be evicted if each budget belongs to another namespace or selects other pods."""
    others = [budget(namespace="other"), budget("web", selector={"matchLabels": {"app": "web"}})]

    found = plan([db("a")], others)

    assert (names(found.free), found.queues, found.blocked) == (["a"], {}, [])


def test_a_deletion_asks_no_budget() -> None:
    """DRN-1a: with `disableEviction`, no budget blocks a pod."""
    found = plan([db("a")], [budget(allowed=0)], DrainOptions(disable_eviction=True))

    assert (names(found.free), found.queues, found.blocked) == (["a"], {}, [])


def test_a_budget_admits_as_many_as_it_allows() -> None:
    """NMO-6, X-6: of four pods, two are queued, and two are blocked with the budget's name and counts."""
    found = plan([db(name) for name in "abcd"], [budget("keep", allowed=2, healthy=4, needed=2)])

    assert {name: names(queue) for name, queue in found.queues.items()} == {"ns/keep": ["a", "b"]}
    assert [item.pod["name"] for item in found.blocked] == ["c", "d"]
    assert [(item.reason, item.budget, item.healthy, item.needed) for item in found.blocked] == [
        ("DisruptionBudget", "keep", 2, 2)
    ] * 2
    assert found.free == []


@pytest.mark.parametrize(
    ("spec", "expected", "closed"),
    [
        ({"maxUnavailable": 0}, 3, True),
        ({"maxUnavailable": "0%"}, 3, True),
        ({"minAvailable": "100%"}, 3, True),
        ({"maxUnavailable": 1}, 4, False),
        ({"minAvailable": "50%"}, 6, False),
        ({"minAvailable": "80%"}, 3, False),
        ({"minAvailable": 3}, 3, False),
        ({"minAvailable": 5}, 3, False),
        ({"maxUnavailable": 0}, 0, False),
    ],
    ids=str,
)
def test_a_budget_that_lets_no_pod_go_says_so(spec: dict[str, Any], expected: int, closed: bool) -> None:
    """OSV-13: `allowsNone` is reported only for a budget that requires all of its pods, whatever their number."""
    item = budget("keep", needed=3)
    whole = {**item, "spec": {**item["spec"], **spec}, "status": {**item["status"], "expectedPods": expected}}

    (blocked,) = plan([db("a")], [whole]).blocked

    assert blocked.as_data().get("allowsNone", False) is closed


def test_two_budgets_over_one_pod_block_it() -> None:
    """NMO-6: a pod under two budgets is blocked, and the message names both budgets and the remedy."""
    found = plan([db("a")], [budget("one", allowed=1), budget("two", allowed=1)])

    (blocked,) = found.blocked
    assert (blocked.reason, blocked.budget) == ("MultipleBudgets", "one, two")
    assert "delete or narrow one of them" in blocked.message
    assert (found.free, found.queues) == ([], {})


def test_pods_that_are_on_their_way_are_not_planned() -> None:
    """NMO-6: a terminating pod is neither evicted again nor reported as blocked."""
    found = plan([pod("a", deletionTimestamp=LONG_AGO), pod("b", labels=DB, deletionTimestamp=LONG_AGO)], [budget()])

    assert (found.free, found.queues, found.blocked) == ([], {}, [])


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_a_pod_that_does_not_run_is_free(phase: str) -> None:
    """NMO-6, NMO-9: the eviction subresource checks no budget for pods that do not run."""
    found = plan([db("a", ready=False, phase=phase)], [budget()])

    assert names(found.free) == ["a"]


@pytest.mark.parametrize(
    ("policy", "healthy", "needed", "goes"),
    [
        pytest.param("", 3, 3, True, id="default, met"),
        pytest.param("", 2, 3, False, id="default, not met"),
        pytest.param("", 0, 0, False, id="default, needs none and has none"),
        pytest.param("IfHealthyBudget", 3, 3, True, id="IfHealthyBudget, met"),
        pytest.param("IfHealthyBudget", 2, 3, False, id="IfHealthyBudget, not met"),
        pytest.param("AlwaysAllow", 3, 3, True, id="AlwaysAllow, met"),
        pytest.param("AlwaysAllow", 0, 3, True, id="AlwaysAllow, not met"),
    ],
)
def test_unready_pods_go_beside_the_count(policy: str, healthy: int, needed: int, goes: bool) -> None:
    """NMO-6: the `unhealthyPodEvictionPolicy` decides whether an exhausted budget admits unready pods (KEP-3017)."""
    closed = budget(policy=policy, healthy=healthy, needed=needed)

    going, waiting = admitted(closed, [db("ready"), db("unready", ready=False)])

    assert (names(going), names(waiting)) == ((["unready"], ["ready"]) if goes else ([], ["ready", "unready"]))


def test_a_budget_that_is_not_counted_yet_lets_nobody_go() -> None:
    """NMO-6: a budget with an outdated status admits no pod; the server would respond 429 with Retry-After."""
    found = plan([db("a")], [budget("new", allowed=3, observed=0)])

    (blocked,) = found.blocked
    assert (blocked.message, blocked.healthy) == ("budget new is new and not yet counted", None)
    assert found.queues == {}


def test_a_budget_without_a_status_is_not_counted_yet() -> None:
    """NMO-6: a budget that was created just now has no status and admits no pod."""
    new = budget()
    del new["status"]

    assert admitted(new, [db("a")]) == ([], [db("a")])
    assert refused_by(new, db("a")).healthy is None


def test_an_empty_selector_covers_the_namespace() -> None:
    """NMO-6: in policy/v1, an empty selector covers every pod of the namespace, and a missing one covers none."""
    everything, nothing = budget(selector={}), budget()
    del nothing["spec"]["selector"]

    assert covers(everything, pod("a"))
    assert not covers(everything, pod("a", namespace="other"))
    assert not covers(nothing, db("a"))


@pytest.mark.parametrize(("needed", "healthy"), [(2, 1), (1, 1), (0, 0)], ids=["ours", "KubeVirt's", "not yet counted"])
@pytest.mark.parametrize("policy", ["", "AlwaysAllow"])
def test_a_pod_that_a_machine_migrates_to_stays_while_it_starts(needed: int, healthy: int, policy: str) -> None:
    """DRN-9: the target pod of a migration is blocked as long as it is pending, and an ordinary pod once it runs.

    The API server would check no budget for the pending pod.
    """
    over = budget("launcher", needed=needed, healthy=healthy, policy=policy)
    starting = pod("target", labels={**DB, TARGET: "uid"}, ready=False, phase="Pending")
    found = plan([starting], [over])

    assert (found.free, found.queues) == ([], {})
    assert [(item.reason, item.budget) for item in found.blocked] == [("Migrating", "launcher")]
    assert plan([starting], []).free == [starting]
    assert plan([db("other", ready=False, phase="Pending")], [over]).blocked == []
    assert plan([pod("target", labels={**DB, TARGET: "uid"})], [over]).blocked[0].reason == "DisruptionBudget"


def test_what_travels_leaves_out_what_is_unknown() -> None:
    """OSV-13: event data contains counts only if they are known."""
    identity = {"namespace": "ns", "name": "a", "uid": "u"}

    counts = {"healthy": 0, "needed": 1}
    known = Blocked(identity, "DisruptionBudget", "m", "keep", 0, 1).as_data()
    unknown = Blocked(identity, "Error", "m").as_data()

    assert known == {**identity, "reason": "DisruptionBudget", "message": "m", "budget": "keep", **counts}
    assert unknown == {**identity, "reason": "Error", "message": "m", "budget": ""}


@given(samples.pods, samples.budgets)
def test_every_pod_that_may_leave_has_one_place(pods: list[Object], budgets: list[Object]) -> None:
    """NMO-6: each leaving pod that is not terminating is either unbudgeted, queued or blocked."""
    leaving = sort(pods).leaving

    found = plan(leaving, budgets)

    queued = [item for queue in found.queues.values() for item in queue]
    blocked = [f"{item.pod['namespace']}/{item.pod['name']}" for item in found.blocked]
    places = [*map(key, found.free), *map(key, queued), *blocked]
    assert sorted(places) == sorted(key(item) for item in leaving if not is_terminating(item))


@given(samples.pods, samples.budgets)
def test_a_queue_is_never_longer_than_its_budget_allows(pods: list[Object], budgets: list[Object]) -> None:
    """NMO-6, X-6: a queue has at most `disruptionsAllowed` ready pods, and none if the budget's status is outdated."""
    found = plan(sort(pods).leaving, budgets)

    for item in budgets:
        going = found.queues.get(budget_key(item), [])
        assert sum(is_ready(each) for each in going) <= max(0, item["status"]["disruptionsAllowed"])
        if item["status"]["observedGeneration"] < 1:
            assert list(going) == []
        assert all(covers(item, each) for each in going)


@pytest.mark.parametrize(
    ("namespaces", "paths"),
    [
        ("", []),
        (
            "aab",
            ["/apis/policy/v1/namespaces/a/poddisruptionbudgets", "/apis/policy/v1/namespaces/b/poddisruptionbudgets"],
        ),
        ("abcd", [BUDGETS]),
    ],
    ids=["no pods", "two namespaces", "many"],
)
def test_only_budgets_that_may_matter_are_listed(namespaces: str, paths: list[str]) -> None:
    """List up to three namespaces one by one, and more in one list of all namespaces."""
    assert budget_paths([pod(namespace=namespace) for namespace in namespaces]) == paths


BARE: Object = {"metadata": {"name": "b", "namespace": "ns"}, "spec": {"selector": {}}}
NEW = {**BARE, "metadata": {**BARE["metadata"], "generation": 1}}


@pytest.mark.parametrize(
    ("found", "message", "counts"),
    [
        (NEW, "budget b is new and not yet counted", {}),
        (BARE, "budget b needs 0 healthy pods and has 0", {"healthy": 0, "needed": 0}),
        (budget("b", healthy=3, needed=2), "budget b needs 2 healthy pods and has 2", {"healthy": 2, "needed": 2}),
        (budget("b", healthy=0, needed=2), "budget b needs 2 healthy pods and has 0", {"healthy": 0, "needed": 2}),
    ],
    ids=["not counted", "without a status", "one is going", "none is there"],
)
def test_a_pod_that_waits_names_its_budget(found: Object, message: str, counts: Object) -> None:
    """NMO-13: a blocked pod has its budget's name, and the counts after one planned eviction, if they are known."""
    blocked = refused_by(found, pod("a"), 1).as_data()

    reason = {"reason": "DisruptionBudget", "message": message, "budget": "b"}
    assert blocked == {"namespace": "ns", "name": "a", "uid": "ns-a-uid", **reason, **counts}


def test_a_budget_without_counts_lets_nothing_go() -> None:
    """X-6: a budget without counts admits neither ready nor unready pods."""
    for found in (NEW, BARE, {**BARE, "status": {"observedGeneration": 0}}):
        for one in (pod("a"), pod("b", ready=False)):
            assert admitted(found, [one]) == ([], [one])
            assert not goes_beside(found, one)
        assert not allows_none(found)


@pytest.mark.parametrize(("needed", "healthy", "beside"), [(0, 1, False), (1, 1, True), (2, 1, False), (1, 0, False)])
def test_an_unready_pod_goes_beside_a_budget_that_is_met(needed: int, healthy: int, beside: bool) -> None:
    """X-6, KEP-3017: a budget admits unready pods if it has enough healthy ones, and requires at least one."""
    assert goes_beside(budget("b", healthy=healthy, needed=needed), pod("a", ready=False)) is beside
