"""Which pods of a node a budget lets go, on plain dicts."""

from __future__ import annotations

import pytest

from eventing.podsource.draining_node import DrainingNode, lets_go, room, selects
from eventing.podsource.turns import Room
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
    """NMO-6: as the eviction subresource counts."""
    assert room(known, pods, [known]) == expected


def test_a_pod_behind_two_budgets_goes_by_neither() -> None:
    one, two = budget("one", allowed=1), budget("two", allowed=1)

    assert room(one, [db()], [one, two]) == Room()


def test_pods_that_a_budget_lets_out_of_its_hand() -> None:
    """By its old or its new version; not those that another one holds back."""
    old, new = budget("b", selector={"matchLabels": DB}), budget("b", selector={"matchLabels": WEB}, observed=0)

    assert lets_go((old, new), [db()], [new])
    assert not lets_go((old, new), [pod(labels=WEB)], [new])
    assert not lets_go((old,), [db()], [budget("other")])
    assert lets_go((old,), [db()], [budget("other", allowed=1)])
    assert not lets_go((old,), [pod(labels=WEB)], [])


def test_pods_that_the_spec_refuses_wait_for_no_budget() -> None:
    """DRN-1a, rule 8: nobody could act on its opening, and it would be told again and again; a changed spec counts."""
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
    """A pod that has run to its end counts no more, and still was one of the budget's."""
    assert selects(budget(), db(phase="Succeeded"))
    assert not selects(budget(), pod(labels=WEB))
    assert not selects(budget(namespace="other"), db())


def test_daemon_set_pods_wait_when_no_other_is_left() -> None:
    """NMO-7: `evict` finds out whose DaemonSet is gone when nothing else is left."""
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
