"""Unit tests of which pods of a node a budget admits for eviction."""

from __future__ import annotations

import pytest

from eventing.podsource.draining_node import DrainingNode, lets_go, room, selects
from eventing.podsource.hint_scheduler import Room
from kube.paths import Object
from tests.kube.samples import budget, maintenance, pod

DB, WEB = {"app": "db"}, {"app": "web"}
GONE = "2026-01-01T00:00:00Z"


def db(name: str = "one", *, ready: bool = True, **more: object) -> Object:
    return pod(name, labels=DB, ready=ready, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "pods", "expected"),
    [
        pytest.param(budget(), [], None, id="nobody waits"),
        pytest.param(budget(), [pod(labels=WEB)], None, id="about others"),
        pytest.param(budget(allowed=0), [db()], Room(), id="closed"),
        pytest.param(budget(allowed=1), [db(), db("two")], Room(counted=True), id="open"),
        pytest.param(budget(allowed=1, observed=0), [db()], Room(), id="not counted yet"),
        pytest.param(budget(allowed=0, healthy=3, needed=3), [db(ready=False)], Room(beside=True), id="unready"),
        pytest.param(budget(allowed=1), [db(), db("two", ready=False)], Room(True, True), id="both"),
        pytest.param(budget(allowed=0, healthy=2, needed=3), [db(ready=False)], Room(), id="unready and not met"),
    ],
)
def test_what_a_budget_has_for_a_node(known: Object, pods: list[Object], expected: Room | None) -> None:
    """NMO-6: The capacity of a budget for a node agrees with the rules of the eviction subresource."""
    assert room(known, pods, [known]) == expected


def test_a_pod_behind_two_budgets_goes_by_neither() -> None:
    one, two = budget("one", allowed=1), budget("two", allowed=1)

    assert room(one, [db()], [one, two]) == Room()


def test_pods_that_a_budget_lets_out_of_its_hand() -> None:
    """Check that pods of a changed or deleted budget's old version may go, unless another budget blocks them."""
    old, new = budget("b", selector={"matchLabels": DB}), budget("b", selector={"matchLabels": WEB}, observed=0)

    assert lets_go((old, new), [db()], [new])
    assert not lets_go((old, new), [pod(labels=WEB)], [new])
    assert not lets_go((old,), [db()], [budget("other")])
    assert lets_go((old,), [db()], [budget("other", allowed=1)])
    assert not lets_go((old,), [pod(labels=WEB)], [])


def test_pods_that_the_spec_refuses_wait_for_no_budget() -> None:
    """DRN-1a, rule 8: Pods that `spec.drain` excludes wait for no budget, until a changed spec includes them.

    A hint about such a pod would have no effect, and PodSource would repeat it.
    """
    item = maintenance()
    kept = {**item, "spec": {**item["spec"], "drain": {"force": False}}}
    narrow = {**item, "spec": {**item["spec"], "drain": {"podSelector": "app=web"}}}
    bare, web, agent = db(), db("web", owner="ReplicaSet"), pod("agent", owner="DaemonSet")
    node = DrainingNode("node-1")
    for one in (bare, web, agent):
        node.put(one)

    assert node.maintain(kept)
    assert not node.maintain(kept)
    assert (node.leaving(), node.going(node.told_apart()), node.waiting("ns")) == ([bare, web], [web], [web])
    node.drop(web)
    assert (node.leaving(), node.waiting("ns")) == ([bare], [])
    assert node.maintain(narrow)
    assert (node.leaving(), node.waiting("ns")) == ([], [])
    assert node.maintain(item)
    assert node.waiting("ns") == [bare]


def test_a_budget_is_about_a_pod_to_its_end() -> None:
    """Check that a budget still selects a pod that has run to completion, although it no longer counts the pod."""
    assert selects(budget(), db(phase="Succeeded"))
    assert not selects(budget(), pod(labels=WEB))
    assert not selects(budget(namespace="other"), db())


def test_daemon_set_pods_wait_when_no_other_is_left() -> None:
    """NMO-7: DaemonSet pods wait for budgets only if no other pods are left.

    `evict` determines which DaemonSets no longer exist only after all other pods have left.
    """
    node, daemon, last = DrainingNode("node-1"), pod("daemon", owner="DaemonSet"), pod("last", owner="ReplicaSet")
    node.put(daemon)
    node.put(last)
    assert node.waiting("ns") == [last]

    node.put({**last, "metadata": {**last["metadata"], "deletionTimestamp": GONE}})
    assert node.waiting("ns") == []

    node.drop(last)
    assert node.waiting("ns") == [daemon]
    assert node.waiting("other") == []


def test_what_changes_is_given_back_as_it_was() -> None:
    node, one = DrainingNode("node-1"), db()

    assert node.put(one) is None
    assert node.put({**one, "spec": {"x": 1}}) is one
    assert node.drop(one) == {**one, "spec": {"x": 1}}
    assert node.drop(one) is None


def test_only_a_node_that_may_be_drained_and_is_known_is_ours() -> None:
    node = DrainingNode("node-1")
    node.maintenances["1"] = maintenance(counts="")
    node.synced = True
    assert not node.is_ours

    node.maintenances["2"] = maintenance()
    assert node.is_ours

    node.synced = False
    assert not node.is_ours
